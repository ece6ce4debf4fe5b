"""A small quantised network for tests, with everything that such networks are made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tunefarm.frontend.onnx.passes import PASSES, Graph
from tunefarm.frontend.quantised import passes as quantised


def outputs_of(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """By ONNX Runtime without optimisation, its products of unsigned numbers alone."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        _unsigned(model).SerializeToString(), options, ["CPUExecutionProvider"]
    )
    return session.run(None, inputs)


_FACTORS = {"MatMulInteger": (1, 3), "ConvInteger": (1, 3), "QLinearMatMul": (3, 5)}
_FACTORS["QLinearConv"] = (3, 5)
"""Where products of whole numbers read their weights, and those numbers' zero."""


def _unsigned(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with weights of uint8 instead of int8, 128 more than they were, as their zero is. By
    ONNX Runtime's products of the two kinds pairs of terms overflow where a processor has no VNNI;
    of one kind they do not."""
    graph = Graph(copied(model))
    for node in graph.nodes:
        if node.op_type not in _FACTORS:
            continue
        place, zero = _FACTORS[node.op_type]
        weights = graph.constants.get(node.input[place])
        if weights is None or weights.dtype != np.int8:
            continue
        node.input.extend([""] * (zero + 1 - len(node.input)))
        if node.input[zero] and node.input[zero] not in graph.constants:
            continue
        nought = graph.constants.get(node.input[zero], np.zeros((), np.int8))
        for at, array in ((place, weights), (zero, nought)):
            node.input[at] = graph.fresh("unsigned")
            graph.constants[node.input[at]] = (array.astype(np.int16) + 128).astype(np.uint8)
    return graph.store()


def spelled_as(model: onnx.ModelProto, target: str) -> Graph:
    """The model, which is changed, as a target's kind has it before the import."""
    graph = Graph(model)
    for one in (*PASSES, quantised.PASSES[target]):
        one(graph)
    return graph


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


class Quantised:
    """A graph that grows, its tensors quantised where one asks for it.

    Args:
        kind: of the numbers, ``uint8`` or ``int8``.
        seed: of weights, scales and zeros.
        most: the largest weight.
    """

    def __init__(self, kind: str = "uint8", seed: int = 0, most: int = 127) -> None:
        self.kind, self.most = kind, most
        self.draw = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, kind: str, *inputs: str, **attributes) -> str:
        result = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result

    def constant(self, values) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def rounded(self, tensor: str, scale: float, zero: int = 0) -> str:
        """The tensor in numbers of 8 bits and back; `zero` as of uint8."""
        shift = 0 if self.kind == "uint8" else 128
        scales = self.constant(np.float32(scale))
        zeros = self.constant(np.array(zero - shift, np.int64).astype(self.kind))
        numbers = self.add("QuantizeLinear", tensor, scales, zeros)
        return self.add("DequantizeLinear", numbers, scales, zeros)

    def weights(self, *shape: int, axis: int = 0) -> str:
        """Constants of int8, with a scale for each index along an axis."""
        numbers = self.draw.integers(-self.most, self.most + 1, shape).astype(np.int8)
        scale = self.draw.uniform(0.5, 2.0, shape[axis]) / (
            60 * self.most / 127 * np.sqrt(numbers.size / shape[axis])
        )
        zeros = self.constant(np.zeros(shape[axis], np.int8))
        scales = self.constant(scale.astype(np.float32))
        return self.add("DequantizeLinear", self.constant(numbers), scales, zeros, axis=axis)

    def bias(self, size: int) -> str:
        return self.constant(self.draw.normal(0, 0.3, size).astype(np.float32))

    def model(self, inputs, outputs) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "quantised",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs],
            self.constants,
        )
        opsets = [helper.make_opsetid("", 13)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model)
        return model


def network(
    path: Path, kind: str = "uint8", size: int = 14, seed: int = 0, most: int = 127
) -> Path:
    """Padded by a zero that is none, with channels that are no fours; a pool, a residue, a
    concatenation of two scales, one channel at a time, and a product of matrices behind a mean."""
    one = Quantised(kind, seed, most)
    x = one.rounded("x", 1 / 100, 120)
    x = one.add("Conv", x, one.weights(32, 3, 3, 3), one.bias(32), pads=[1, 1, 1, 1])
    x = one.rounded(one.add("Relu", x), 1 / 60)
    x = one.rounded(one.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 1 / 60)
    y = one.add("Conv", x, one.weights(32, 32, 3, 3), one.bias(32), pads=[1, 1, 1, 1])
    y = one.rounded(y, 1 / 40, 100)
    x = one.rounded(one.add("Relu", one.add("Add", x, y)), 1 / 50)
    a = one.rounded(one.add("Conv", x, one.weights(16, 32, 1, 1)), 1 / 40, 90)
    b = one.rounded(
        one.add("Conv", x, one.weights(32, 1, 3, 3), one.bias(32), group=32, pads=[1] * 4),
        1 / 30,
        130,
    )
    x = one.rounded(one.add("Concat", a, b, axis=1), 1 / 30, 130)
    x = one.add("Conv", x, one.weights(64, 48, 1, 1), one.bias(64), strides=[2, 2])
    x = one.rounded(one.add("Relu", x), 1 / 50)
    x = one.rounded(one.add("GlobalAveragePool", x), 1 / 90)
    x = one.rounded(one.add("Flatten", x), 1 / 90)
    x = one.add("Gemm", x, one.weights(24, 64), one.bias(24), transB=1)
    one.nodes[-1].output[0] = "y"
    model = one.model([("x", [1, 3, size, size])], [("y", [1, 24])])
    path.write_bytes(model.SerializeToString())
    return path


class Dynamic:
    """A graph whose tensors are quantised by what is in them when it runs.

    Args:
        seed: of weights and scales.
    """

    def __init__(self, seed: int = 0, opset: int = 13) -> None:
        self.draw, self.opset = np.random.default_rng(seed), opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, kind: str, *inputs: str, results: int = 1, **attributes) -> str:
        names = [f"t{len(self.nodes)}{end}" for end in ("", "s", "z")[:results]]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0]

    def constant(self, values) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def quantised(self, x: str) -> str:
        """Its scale and its zero have the same name with an s and a z behind it."""
        return self.add("DynamicQuantizeLinear", x, results=3)

    def weights(self, *shape: int, zeros: int = 0) -> tuple[str, str]:
        """Of int8 without zeros, or of uint8 with one for each column."""
        if not zeros:
            return self.constant(self.draw.integers(-127, 128, shape).astype(np.int8)), ""
        zero = self.draw.integers(120, 128, zeros).astype(np.uint8)
        numbers = self.draw.integers(10, 246, shape).astype(np.uint8)
        return self.constant(numbers), self.constant(zero)

    def dense(self, x: str, depth: int, columns: int, zeros: bool = False) -> str:
        """A product of what was quantised as `x`, scaled, with a bias."""
        w, w_zero = self.weights(depth, columns, zeros=columns if zeros else 0)
        operands = (x, w, f"{x}z", w_zero) if zeros else (x, w, f"{x}z")
        made = self.add("MatMulInteger", *operands)
        scale = self.constant(self.draw.uniform(0.001, 0.003, columns).astype(np.float32))
        by = self.add("Mul", f"{x}s", scale)
        made = self.add("Mul", self.add("Cast", made, to=TensorProto.FLOAT), by)
        bias = self.constant(self.draw.normal(0, 0.3, columns).astype(np.float32))
        return self.add("Add", made, bias)

    def model(self, inputs, outputs) -> onnx.ModelProto:
        """Outputs: (name, shape, type) each."""
        graph = helper.make_graph(
            self.nodes,
            "dynamic",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs],
            [helper.make_tensor_value_info(n, t, s) for n, s, t in outputs],
            self.constants,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model)
        return model


def dynamic(path: Path, rows: int = 6, opset: int = 13, seed: int = 0) -> Path:
    """Two products of one tensor, and one of what they make together."""
    one = Dynamic(seed, opset)
    x = one.quantised("x")
    left, right = one.dense(x, 32, 64), one.dense(x, 32, 64, zeros=True)
    x = one.quantised(one.add("Relu", one.add("Add", left, right)))
    y = one.dense(x, 64, 16)
    one.nodes[-1].output[0] = "y"
    assert y
    model = one.model([("x", [1, rows, 32])], [("y", [1, rows, 16], TensorProto.FLOAT)])
    path.write_bytes(model.SerializeToString())
    return path
