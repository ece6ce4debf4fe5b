"""Small real networks for tests, as ONNX files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(path: Path, nodes, inputs, outputs, constants, opset: int = 13) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="tests")
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def seeded(scale: float) -> Callable[..., np.ndarray]:
    """Seeded arrays by their shapes, one after another."""
    rng = np.random.default_rng(0)
    return lambda *shape: rng.normal(0, scale, shape).astype(np.float32)


def cnn(path: Path, size: int = 32) -> Path:
    """conv 3x3, batch norm, relu, max pool, conv 1x1, mean, dense, softmax; pictures of `size`."""
    weights = seeded(0.2)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", "g", "b", "m", "v"], ["n1"]),
        helper.make_node("Relu", ["n1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2"], ["c2"]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["a"]),
        helper.make_node("Flatten", ["a"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["d"], transB=1),
        helper.make_node("Softmax", ["d"], ["y"]),
    ]
    constants = [
        ("w1", weights(32, 16, 3, 3)),
        ("b1", weights(32)),
        *((name, np.abs(weights(32)) + 0.5) for name in "gbmv"),
        ("w2", weights(64, 32, 1, 1)),
        ("w3", weights(10, 64)),
        ("b3", weights(10)),
    ]
    return save(path, nodes, [("x", [1, 16, size, size])], [("y", [1, 10])], constants)


def matmul(path: Path) -> Path:
    """One 16x16x16 matmul: the kernel that `tests.plugins.faults` has schedules for."""
    return single_matmul(path, 16)


def single_matmul(path: Path, size: int) -> Path:
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
    shape = [size, size]
    return save(path, nodes, [("a", shape), ("b", shape)], [("y", shape)], [])


def vector_dense(path: Path, size: int) -> Path:
    """One row times a square of weights, which are most of what is read."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    constants = [("w", seeded(0.1)(size, size))]
    return save(path, [node], [("x", [1, size])], [("y", [1, size])], constants)


def kernels(path: Path) -> Path:
    """One of each kind of kernel that a family of schedules is for; sizes that divide badly."""
    weights = seeded(0.2)

    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["matmul"]),
        helper.make_node("MatMul", ["q", "k"], ["batched"]),
        helper.make_node("Gemm", ["d", "w1", "b1"], ["g"]),
        helper.make_node("Relu", ["g"], ["dense"]),
        helper.make_node("Conv", ["x", "w2", "b2"], ["c"], strides=[2, 2], **same),
        helper.make_node("Relu", ["c"], ["strided"]),
        helper.make_node("Conv", ["x", "w3"], ["grouped"], group=4, **same),
        helper.make_node("Conv", ["x", "w4"], ["depthwise"], group=16, **same),
        helper.make_node("MaxPool", ["x"], ["pool"], kernel_shape=[3, 3], strides=[2, 2], **same),
        helper.make_node("Softmax", ["s"], ["softmax"]),
        helper.make_node("LayerNormalization", ["s", "n1", "n2"], ["norm"]),
        helper.make_node("Add", ["e", "e2"], ["sum"]),
        helper.make_node("Sigmoid", ["sum"], ["chain"]),
        helper.make_node("Transpose", ["e"], ["turned"], perm=[1, 0]),
        helper.make_node("Concat", ["e", "e2"], ["joined"], axis=1),
        helper.make_node("Mul", ["e", "n1"], ["scaled"]),
        helper.make_node("ReduceMean", ["e"], ["means"], axes=[1]),
        helper.make_node("Sub", ["e", "means"], ["centred"]),
        helper.make_node("Reshape", ["h", "apart"], ["h1"]),
        helper.make_node("Transpose", ["h1"], ["h2"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["h2", "whole"], ["shuffled"]),
    ]
    constants = [
        *(("w1", weights(64, 40)), ("b1", weights(40))),
        *(("w2", weights(24, 16, 3, 3)), ("b2", weights(24))),
        *(("w3", weights(32, 4, 3, 3)), ("w4", weights(16, 1, 3, 3))),
        *(("n1", weights(48)), ("n2", weights(48))),
        *(("apart", np.array([3, 4, 14])), ("whole", np.array([12, 14]))),
    ]
    inputs = [
        *(("a", [29, 41]), ("b", [41, 37]), ("q", [3, 16, 8]), ("k", [3, 8, 24])),
        *(("d", [4, 64]), ("x", [1, 16, 14, 14]), ("s", [6, 48])),
        *(("e", [40, 48]), ("e2", [40, 48]), ("h", [12, 14])),
    ]
    outputs = [
        *(("matmul", [29, 37]), ("batched", [3, 16, 24]), ("dense", [4, 40])),
        *(("strided", [1, 24, 7, 7]), ("grouped", [1, 32, 14, 14])),
        *(
            ("depthwise", [1, 16, 14, 14]),
            ("pool", [1, 16, 7, 7]),
        ),
        *(("softmax", [6, 48]), ("norm", [6, 48])),
        *(("chain", [40, 48]), ("turned", [48, 40]), ("joined", [40, 96]), ("scaled", [40, 48])),
        *(("shuffled", [12, 14]), ("centred", [40, 48])),
    ]
    return save(path, nodes, inputs, outputs, constants, opset=17)


def renamed(model: Path, path: Path, before: str = "other_") -> Path:
    """The same network with other names of all its tensors."""
    other = onnx.load(model)
    for node in other.graph.node:
        node.input[:] = [before + name for name in node.input]
        node.output[:] = [before + name for name in node.output]
    for values in (other.graph.input, other.graph.output, other.graph.initializer):
        for value in values:
            value.name = before + value.name
    onnx.save(other, path)
    return path


def convolutions(path: Path) -> Path:
    """Convolutions without stride: padded and not, 3x3 and 5x5, of an image that no tile divides,
    and with what follows them."""
    weights = seeded(0.1)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"]),
        helper.make_node("Conv", ["c2", "w3", "b3"], ["c3"], pads=[2, 2, 2, 2]),
        helper.make_node("Conv", ["c2", "w4"], ["c4"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c3", "c4"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["r2"]),
        helper.make_node("Conv", ["r2", "w5"], ["y"], pads=[1, 1, 1, 1], group=2),
    ]
    constants = [
        *(("w1", weights(32, 16, 3, 3)), ("b1", weights(32)), ("w2", weights(32, 32, 3, 3))),
        *(("w3", weights(24, 32, 5, 5)), ("b3", weights(24)), ("w4", weights(24, 32, 3, 3))),
        ("w5", weights(32, 12, 3, 3)),
    ]
    return save(path, nodes, [("x", [2, 16, 13, 11])], [("y", [2, 32, 11, 9])], constants)


def narrow_groups(path: Path) -> Path:
    """Grouped convolutions of two and of four filters a group: padded and followed by something,
    strided, with other numbers of channels than of filters, and in a batch."""
    weights = seeded(0.1)
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"]),
        helper.make_node("Conv", ["c1", "w2", "b2"], ["c2"], group=16, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Conv", ["r2", "w3"], ["c3"], group=32, pads=[2, 2, 2, 2]),
        helper.make_node("Conv", ["c3", "w4"], ["y"], group=16, strides=[2, 2]),
    ]
    constants = [
        *(("w1", weights(64, 8, 1, 1)), ("w2", weights(64, 4, 3, 3)), ("b2", weights(64))),
        *(("w3", weights(64, 2, 5, 5)), ("w4", weights(32, 4, 3, 3))),
    ]
    return save(path, nodes, [("x", [2, 8, 12, 8])], [("y", [2, 32, 5, 3])], constants)


def rows_inside(path: Path) -> Path:
    """Convolutions with something between them that works on rows of pixels: channels last, each
    would have a transpose before it and one after it."""
    weights = seeded(0.3)
    nodes, last = [], "x"
    for number in range(3):
        names = [f"{kind}{number}" for kind in ("c", "flat", "s", "whole")]
        nodes += [
            helper.make_node("Conv", [last, f"w{number}"], names[:1], pads=[1, 1, 1, 1]),
            helper.make_node("Reshape", [names[0], "rows"], names[1:2]),
            helper.make_node("Softmax", names[1:2], names[2:3], axis=-1),
            helper.make_node("Reshape", [names[2], "image"], names[3:4]),
        ]
        last = names[3]
    nodes.append(helper.make_node("Conv", [last, "w3"], ["y"], pads=[1, 1, 1, 1]))
    constants = [
        *((f"w{number}", weights(16, 16, 3, 3)) for number in range(4)),
        *(("rows", np.array([1, 16, 120])), ("image", np.array([1, 16, 12, 10]))),
    ]
    return save(path, nodes, [("x", [1, 16, 12, 10])], [("y", [1, 16, 12, 10])], constants)


def pools(path: Path) -> Path:
    """Pooling with channels first: padded and not, with and without a stride, and with what
    follows."""
    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["m1"], kernel_shape=[3, 3], strides=[2, 2], **same),
        helper.make_node("AveragePool", ["x"], ["a"], kernel_shape=[3, 3], **same),
        helper.make_node("Sigmoid", ["a"], ["m2"]),
        helper.make_node("MaxPool", ["x"], ["m3"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    outputs = [("m1", [2, 5, 7, 9]), ("m2", [2, 5, 14, 18]), ("m3", [2, 5, 7, 9])]
    return save(path, nodes, [("x", [2, 5, 14, 18])], outputs, [])


def transcendent(path: Path) -> Path:
    """Functions that a library computes for each element, where nobody prevents it."""
    names = ("Exp", "Sigmoid", "Tanh", "Erf", "Softmax")
    nodes = [helper.make_node(name, ["x"], [name]) for name in names]
    return save(path, nodes, [("x", [8, 32])], [(name, [8, 32]) for name in names], [])


def activated(path: Path) -> Path:
    """A convolution followed by x times its own logistic function."""
    weights = seeded(0.2)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["y"]),
    ]
    constants = [("w", weights(32, 16, 3, 3)), ("b", weights(32))]
    return save(path, nodes, [("x", [1, 16, 12, 12])], [("y", [1, 32, 12, 12])], constants)


def rectified(path: Path, opset: int = 14) -> Path:
    """Convolutions with bounded, leaky and hard activations between them, and constants of fewer
    axes than the image. Before opset 11 bounds are attributes, and the only activation."""
    make, weights = helper.make_node, seeded(0.3)
    bounds = [make("Clip", ["?"], ["!"], min=0.0, max=0.5)]
    if opset >= 14:
        bounds = [
            make("Clip", ["?", "zero", "six"], ["!"]),
            make("Clip", ["?", "", "half"], ["!"]),
            make("HardSwish", ["?"], ["!"]),
            make("HardSigmoid", ["?"], ["!"], alpha=1 / 6),
            make("LeakyRelu", ["?"], ["!"], alpha=0.1),
            make("Max", ["?", "row"], ["!"]),
            make("Min", ["six", "?"], ["!"]),
            make("Pow", ["?", "row"], ["!"]),
            make("Mul", ["each", "?"], ["!"]),
        ]
    nodes, constants, at = [], [], "x"
    for number, node in enumerate(bounds):
        nodes.append(make("Conv", [at, f"w{number}"], [f"c{number}"], pads=[1, 1, 1, 1]))
        at = f"a{number}"
        node.input[:] = [f"c{number}" if name == "?" else name for name in node.input]
        node.output[:] = [at]
        nodes.append(node)
        constants.append((f"w{number}", weights(8, 8, 3, 3)))
    nodes.append(make("Conv", [at, "last"], ["y"]))
    constants += [("last", weights(4, 8, 1, 1)), ("each", weights(8, 1, 1))]
    scalars = {"zero": 0.0, "half": 0.5, "six": 6.0, "row": [2.0]}
    constants += [(name, np.array(value, np.float32)) for name, value in scalars.items()]
    return save(path, nodes, [("x", [1, 8, 9, 9])], [("y", [1, 4, 9, 9])], constants, opset)


def halved_first(path: Path) -> Path:
    """A dense layer and x/2 (1 + erf(x / sqrt 2)), whose two factors are made beside each other: no
    stage but the last reads both."""
    weights = seeded(0.2)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["s"]),
        helper.make_node("Div", ["s", "root"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Mul", ["s", "half"], ["h"]),
        helper.make_node("Add", ["e", "one"], ["f"]),
        helper.make_node("Mul", ["h", "f"], ["y"]),
    ]
    scalars = {"root": 2**0.5, "half": 0.5, "one": 1.0}
    constants = [("w", weights(64, 96)), ("b", weights(96))]
    constants += [(name, np.array(value, np.float32)) for name, value in scalars.items()]
    return save(path, nodes, [("x", [24, 64])], [("y", [24, 96])], constants)


def instances(path: Path) -> Path:
    """Between convolutions, every channel of an image with a mean of 0 and a variance of 1."""
    weights = seeded(0.2)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("InstanceNormalization", ["c", "s", "b"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    constants = [("w", weights(16, 16, 3, 3)), ("s", weights(16)), ("b", weights(16))]
    return save(path, nodes, [("x", [1, 16, 6, 7])], [("y", [1, 16, 6, 7])], constants)


def scaled(path: Path) -> Path:
    """Channels scaled by a convolution of their means, as in squeeze and excitation, then brought
    to a mean of 0."""
    weights = seeded(0.2)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["g"]),
        helper.make_node("Conv", ["g", "s", "b"], ["n"]),
        helper.make_node("Sigmoid", ["n"], ["o"]),
        helper.make_node("Mul", ["c", "o"], ["m"]),
        helper.make_node("GlobalAveragePool", ["m"], ["d"]),
        helper.make_node("Sub", ["m", "d"], ["e"]),
        helper.make_node("Mul", ["e", "half"], ["y"]),
    ]
    constants = [("w", weights(32, 16, 3, 3)), ("s", weights(32, 32, 1, 1)), ("b", weights(32))]
    constants.append(("half", np.float32(0.5)))
    return save(path, nodes, [("x", [1, 16, 6, 7])], [("y", [1, 32, 6, 7])], constants)


def windows(path: Path) -> Path:
    """Largest of windows with channels first: every kind of step, window and padding; the last one
    with something that follows it."""
    kinds = {
        "m1": ((3, 3), (2, 2), (0, 0, 1, 1), (7, 9)),
        "m2": ((3, 3), (1, 1), (1, 1, 1, 1), (14, 18)),
        "m3": ((5, 2), (3, 2), (2, 1, 2, 1), (5, 10)),
        "m4": ((2, 4), (2, 3), (0, 0, 0, 0), (7, 5)),
        "m5": ((2, 2), (2, 2), (0, 0, 0, 0), (7, 9)),
    }
    nodes = [
        helper.make_node("MaxPool", ["x"], [name], kernel_shape=window, strides=strides, pads=pads)
        for name, (window, strides, pads, _) in kinds.items()
    ]
    nodes.append(helper.make_node("Sigmoid", ["m5"], ["m6"]))
    outputs = [(name, [2, 5, *shape]) for name, (*_, shape) in kinds.items() if name != "m5"]
    outputs.append(("m6", [2, 5, 7, 9]))
    return save(path, nodes, [("x", [2, 5, 14, 18])], outputs, [])


def joined_heads(path: Path) -> Path:
    """What follows attention: three heads of 24 beside each other again."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "joined"], ["y"]),
    ]
    joined = ("joined", np.array([1, 10, 72]))
    return save(path, nodes, [("x", [1, 3, 10, 24])], [("y", [1, 10, 72])], [joined])


def flattened(path: Path) -> Path:
    """What lies between convolutions, channels last, and a dense layer: turned, then one row."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Reshape", ["t", "row"], ["y"]),
    ]
    row = ("row", np.array([1, 25088]))
    return save(path, nodes, [("x", [1, 7, 7, 512])], [("y", [1, 25088])], [row])


def branches(path: Path) -> Path:
    """Three branches that only their concatenation reads, and two of which one is read twice."""
    weights = seeded(0.3)

    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[3, 3], **same),
        helper.make_node("Conv", ["p", "w2"], ["c2"]),
        helper.make_node("Conv", ["x", "w3", "b3"], ["c3"], **same),
        helper.make_node("Relu", ["c3"], ["r3"]),
        helper.make_node("Concat", ["r1", "r3", "c2"], ["all"], axis=1),
        helper.make_node("Conv", ["all", "w4", "b4"], ["c4"]),
        helper.make_node("Sigmoid", ["c4"], ["s4"]),
        helper.make_node("Concat", ["c4", "s4"], ["y"], axis=1),
    ]
    constants = [
        *(("w1", weights(12, 8, 1, 1)), ("b1", weights(12)), ("w2", weights(4, 8, 1, 1))),
        *(("w3", weights(20, 8, 3, 3)), ("b3", weights(20))),
        *(("w4", weights(16, 36, 1, 1)), ("b4", weights(16))),
    ]
    return save(path, nodes, [("x", [1, 8, 9, 9])], [("y", [1, 32, 9, 9])], constants)


def shuffled(path: Path) -> Path:
    """Grouped convolutions with a channel shuffle and a depthwise convolution between them, and
    groups of 20 and of 18 filters, which no good vector divides."""
    weights = seeded(0.3)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], group=2),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Reshape", ["r1", "apart"], ["s1"]),
        helper.make_node("Transpose", ["s1"], ["s2"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["s2", "together"], ["s3"]),
        helper.make_node(
            "Conv", ["s3", "w2", "b2"], ["c2"], group=40, strides=[2, 2], pads=[1, 1, 1, 1]
        ),
        helper.make_node("Conv", ["c2", "w3"], ["c3"], group=2),
        helper.make_node("Conv", ["c3", "w4", "b4"], ["c4"], group=2, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c4"], ["y"]),
    ]
    constants = [
        *(("w1", weights(40, 8, 1, 1)), ("b1", weights(40)), ("w2", weights(40, 1, 3, 3))),
        *(("b2", weights(40)), ("w3", weights(40, 20, 1, 1))),
        *(("w4", weights(36, 20, 3, 3)), ("b4", weights(36))),
        *(("apart", np.array([0, 2, 20, 9, -1])), ("together", np.array([1, 40, 9, 9]))),
    ]
    return save(path, nodes, [("x", [1, 16, 9, 9])], [("y", [1, 36, 5, 5])], constants)


def normalised(path: Path) -> Path:
    """A local response normalisation: a power of three quarters."""
    node = helper.make_node("LRN", ["x"], ["y"], size=5, alpha=0.1, beta=0.75)
    return save(path, [node], [("x", [1, 16, 9, 9])], [("y", [1, 16, 9, 9])], [])


def normalised_by_parts(path: Path) -> Path:
    """Rows less their means, and divided by their root mean square, out of single operations."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[-1]),
        helper.make_node("Sub", ["x", "m"], ["centred"]),
        helper.make_node("Mul", ["x", "x"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["v"], axes=[-1]),
        helper.make_node("Add", ["v", "e"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["r"]),
        helper.make_node("Div", ["x", "r"], ["d"]),
        helper.make_node("Mul", ["d", "g"], ["scaled"]),
    ]
    shape = [2, 10, 96]
    outputs = [("centred", shape), ("scaled", shape)]
    constants = [("e", np.float32(1e-5)), ("g", seeded(1.0)(96))]
    return save(path, nodes, [("x", shape)], outputs, constants)


def two_by_two(path: Path) -> Path:
    """Two inputs of different shapes, two outputs that tell them apart."""
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["ab"]),
        helper.make_node("Relu", ["ab"], ["first"]),
        helper.make_node("Sub", ["b", "w"], ["second"]),
    ]
    return save(
        path,
        nodes,
        [("a", [8, 16]), ("b", [16, 24])],
        [("first", [8, 24]), ("second", [16, 24])],
        [("w", np.linspace(0, 1, 24, dtype=np.float32))],
    )


def recurrent(path: Path, steps: int, units: int = 16) -> Path:
    """An LSTM over steps of 8 numbers."""
    weights = seeded(0.3)
    nodes = [helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=units)]
    constants = [
        ("w", weights(1, 4 * units, 8)),
        ("r", weights(1, 4 * units, units)),
        ("b", weights(1, 8 * units)),
    ]
    return save(path, nodes, [("x", [steps, 1, 8])], [("y", [steps, 1, 1, units])], constants)


def scattered(path: Path) -> Path:
    """An exponential, some of whose numbers are set to others."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("ScatterElements", ["e", "places", "numbers"], ["y"], axis=1),
    ]
    constants = [("places", np.array([[0, 2]] * 3)), ("numbers", seeded(1)(3, 2))]
    return save(path, nodes, [("x", [3, 4])], [("y", [3, 4])], constants)


def embedded(path: Path, rows: int = 30_000) -> Path:
    """As language models begin: some rows of a large table, of which the last is multiplied."""
    rng = np.random.default_rng(0)
    table = numpy_helper.from_array(rng.normal(0, 1, (rows, 384)).astype(np.float32), "table")
    weights = numpy_helper.from_array(rng.normal(0, 1, (384, 256)).astype(np.float32), "w")
    ends = [
        numpy_helper.from_array(np.array([one], np.int64), name)
        for name, one in (("from", 127), ("to", 128), ("axis", 1))
    ]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["taken"]),
        helper.make_node("Tanh", ["taken"], ["bent"]),
        helper.make_node("Slice", ["bent", "from", "to", "axis"], ["last"]),
        helper.make_node("MatMul", ["last", "w"], ["y"]),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 128])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 256])
    graph = helper.make_graph(nodes, "embedded", [ids], [y], [table, weights, *ends])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path
