"""Quantised models: numbers of 8 bits, each tensor with a scale and a zero of its own.

In the graph an operator of such tensors stands between nodes that make floating-point numbers of
its operands and whole numbers of its result, and the compiler would compute it in floating point.
Here a product is spelled as one of whole numbers, with its scales behind it; what moves elements or
takes the largest works on 8 bits; everything else is arithmetic that is fused with its neighbours
(`relax.spelled`). Whole numbers are still written as float32: `relax.whole` makes integers of them
where the target has instructions for them, and where it has none the model is right as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tunefarm.frontend.dtypes import BYTES
from tunefarm.frontend.onnx.passes import Array, Graph, attribute
from tunefarm.frontend.quantised.bounds import drop_bounds
from tunefarm.frontend.quantised.dynamic import DYNAMIC, spell_dynamic
from tunefarm.frontend.quantised.scale import (
    DEQUANTISE,
    QUANTISE,
    Scale,
    put_scale,
    scale_of,
)

_MOVES = frozenset({"MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze"})
"""Operators that commute with a scale and a zero: they choose among their operand's elements."""
WHOLE = "QLinearConv", "QLinearMatMul"
"""Operators that are a quantised product in one."""
SPELLED = DYNAMIC | {*WHOLE}
"""Operators that are others, once these passes have run."""


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether it computes in numbers of 8 bits."""
    return any(node.op_type in (QUANTISE, *SPELLED) for node in model.graph.node)


def for_unsigned(graph: Graph) -> None:
    """For processors, whose instructions multiply unsigned numbers by signed ones."""
    _spell(graph, "uint8")


def for_signed(graph: Graph) -> None:
    """For GPUs, whose tensor cores have both operands signed."""
    _spell(graph, "int8")


PASSES: dict[str, Callable[[Graph], None]] = {"llvm": for_unsigned, "cuda": for_signed}
"""By the kind of the target."""


def _spell(graph: Graph, wanted: str) -> None:
    spell_dynamic(graph, wanted)
    kinds = {node.op_type for node in graph.nodes}
    if not kinds & {QUANTISE, DEQUANTISE, *WHOLE}:
        return
    graph.nodes = [one for node in graph.nodes for one in _apart(graph, node)]
    _retype(graph, wanted)
    drop_bounds(graph)
    _move(graph)
    _Speller(graph).run()


def _apart(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A quantised product in one node as those that it stands for; as it is where its scales are
    not known before the run, or are several for the rows of its data or its result."""
    if node.op_type not in WHOLE:
        return [node]
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = node.input
    known = graph.constants
    if not {x_scale, w_scale, y_scale, *bias} <= set(known):
        return [node]
    if any(known[name].size != 1 for name in (x_scale, y_scale)):
        return [node]
    (result,) = node.output
    data, weights, product = (f"{result}::{name}" for name in ("data", "weights", "product"))
    convolution = node.op_type == "QLinearConv"
    nodes = [
        helper.make_node(DEQUANTISE, [x, x_scale, x_zero], [data]),
        helper.make_node(
            DEQUANTISE, [w, w_scale, w_zero], [weights], axis=0 if convolution else -1
        ),
    ]
    operands = [data, weights]
    if bias:  # whole numbers in the scale of the product
        scales = known[w_scale].astype(np.float64).reshape(-1) * float(known[x_scale].reshape(()))
        operands.append(f"{result}::bias")
        known[operands[-1]] = (known[bias[0]].astype(np.float64) * scales).astype(np.float32)
    made = helper.make_node("Conv" if convolution else "MatMul", operands, [product])
    made.attribute.extend(node.attribute)
    last = helper.make_node(QUANTISE, [product, y_scale, y_zero], [result])
    return [*nodes, made, last]


def _retype(graph: Graph, wanted: str) -> None:
    """Tensors of 8 bits inside the network as `wanted`, their zeros shifted along."""
    readers = graph.readers()
    for node in graph.nodes:
        scale = scale_of(graph, node) if node.op_type == QUANTISE else None
        if scale is None or scale.dtype == wanted or node.output[0] in graph.outputs:
            continue
        group = readers[node.output[0]]
        if any(one.op_type != DEQUANTISE or scale_of(graph, one) is None for one in group):
            continue
        for one in (node, *group):
            known = scale_of(graph, one)
            assert known is not None
            put_scale(graph, one, known.as_type(wanted))


def _move(graph: Graph) -> None:
    """Operators that only choose among elements, and concatenations, on 8 bits."""
    changed = True
    while changed:
        changed = False
        readers, used = graph.readers(), graph.uses()
        makers = {name: node for node in graph.nodes for name in node.output}
        for place, node in enumerate(graph.nodes):
            result = _quantised_alone(graph, node, readers, used)
            sources = [makers.get(name) for name in _operands(node)]
            if result is None or any(one is None or one.op_type != DEQUANTISE for one in sources):
                continue
            last, scale = result
            if node.op_type in _MOVES and scale_of(graph, sources[0]) != scale:
                continue
            first = _inputs_in(graph, node, [one for one in sources if one], scale)
            if first is None:
                continue
            node.output[0] = last.output[0]
            graph.nodes[place:place] = first
            graph.nodes = [one for one in graph.nodes if one is not last]
            changed = True
            break


def _operands(node: onnx.NodeProto) -> list[str]:
    return list(node.input) if node.op_type == "Concat" else list(node.input[:1])


def _quantised_alone(
    graph: Graph,
    node: onnx.NodeProto,
    readers: dict[str, list[onnx.NodeProto]],
    used: Counter[str],
) -> tuple[onnx.NodeProto, Scale] | None:
    """The node that quantises the result of one that may be moved, where nobody else reads it."""
    if node.op_type not in (*_MOVES, "Concat") or len(node.output) != 1:
        return None
    group = readers.get(node.output[0], [])
    if used[node.output[0]] != 1 or len(group) != 1 or group[0].op_type != QUANTISE:
        return None
    scale = scale_of(graph, group[0])
    return None if scale is None else (group[0], scale)


def _inputs_in(
    graph: Graph, node: onnx.NodeProto, sources: Sequence[onnx.NodeProto], scale: Scale
) -> list[onnx.NodeProto] | None:
    """Have `node` read numbers in `scale`; the nodes that make those that are not there yet. None
    where some are in no scale that is known."""
    known = [scale_of(graph, one) for one in sources]
    if None in known:
        return None
    made = []
    for place, (source, own) in enumerate(zip(sources, known, strict=True)):
        if own == scale:
            node.input[place] = source.input[0]
            continue
        name = f"{node.output[0]}::part{place}"
        again = helper.make_node(QUANTISE, [source.output[0]], [name])
        put_scale(graph, again, scale)
        made.append(again)
        node.input[place] = name
    return made


FEW = 4
"""Filters of a group."""


@dataclass(frozen=True)
class _Factors:
    """Constant weights: whole numbers, and what they are multiplied by, for each column; of which
    axis `along` are the columns."""

    numbers: NDArray[np.int32]
    scale: NDArray[np.float64]
    along: int

    @property
    def columns(self) -> int:
        return int(self.numbers.shape[self.along])

    def sums(self) -> NDArray[np.int64]:
        """Of each column."""
        others = tuple(axis for axis in range(self.numbers.ndim) if axis != self.along)
        sums: NDArray[np.int64] = self.numbers.sum(axis=others, dtype=np.int64)
        return sums


class _Speller:
    """Writes the nodes of a graph anew, its products as such of whole numbers."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._used = graph.uses()
        self._readers = graph.readers()
        self._makers = {name: node for node in graph.nodes for name in node.output}
        self._nodes: list[onnx.NodeProto] = []
        self._scaled: set[str] = set()
        """Tensors that a product has divided by their scale already."""

    def run(self) -> None:
        for node in self._graph.nodes:
            if node.op_type == DEQUANTISE:
                self._dequantise(node)
            elif node.op_type == QUANTISE:
                self._quantise(node)
            elif not (node.op_type in ("Conv", "MatMul", "Gemm") and self._product(node)):
                self._nodes.append(node)
        self._graph.nodes = self._nodes
        used = self._graph.uses()
        for node in reversed(self._graph.nodes):  # what nobody reads any more
            if not any(used[name] for name in node.output):
                used.subtract(node.input)
        kept = (node for node in self._graph.nodes if any(used[name] for name in node.output))
        self._graph.nodes = list(kept)

    def _emit(self, kind: str, inputs: Sequence[str], result: str) -> str:
        self._nodes.append(helper.make_node(kind, list(inputs), [result]))
        return result

    def _float(self, name: str, values: Any) -> str:
        self._graph.constants[name] = np.asarray(values, np.float32)
        return name

    def _dequantise(self, node: onnx.NodeProto) -> None:
        known = all(not name or name in self._graph.constants for name in node.input)
        values = self._stored(node) if known else None
        if values is None:
            self._nodes.append(node)
        else:
            self._float(node.output[0], values)

    def _whole(self, numbers: str, scale: Scale, result: str) -> str:
        """The numbers of a tensor, less their zero, in float32."""
        made = helper.make_node(DEQUANTISE, [numbers], [f"{result}::whole"])
        put_scale(self._graph, made, replace(scale, scale=1.0))
        self._nodes.append(made)
        return str(made.output[0])

    def _stored(self, node: onnx.NodeProto) -> NDArray[np.float32] | None:
        """Constants in floating point; None for blocks of them, and for types that are none of
        whole numbers."""
        numbers, scale = (self._graph.constants[name] for name in node.input[:2])
        if attribute(node, "block_size", 0) or numbers.dtype.kind not in "iu":
            return None
        axis = attribute(node, "axis", 1)
        less = numbers.astype(np.float32) - _along(numbers, axis, self._zero(node), np.float32)
        return np.asarray(less * _along(numbers, axis, scale, np.float32), np.float32)

    def _zero(self, node: onnx.NodeProto) -> Array:
        if len(node.input) > 2 and node.input[2]:
            return self._graph.constants[node.input[2]]
        return np.zeros(1, np.int8)

    def _quantise(self, node: onnx.NodeProto) -> None:
        if node.input[0] in self._scaled:
            scale = scale_of(self._graph, node)
            assert scale is not None, "a product was divided by it"
            put_scale(self._graph, node, replace(scale, scale=1.0))
        self._nodes.append(node)

    def _product(self, node: onnx.NodeProto) -> bool:
        """Spell a product of a quantised tensor and constants; whether it is one."""
        data = self._makers.get(node.input[0])
        factors = self._factors(node)
        if data is None or data.op_type != DEQUANTISE or factors is None:
            return False
        scale = scale_of(self._graph, data)
        given = [name for name in node.input[2:] if name]
        bias = self._graph.constants.get(given[0]) if given else None
        if scale is None or (given and bias is None):
            return False
        if bias is not None and bias.size not in (1, factors.columns):
            return False  # one for each element of the result
        name = node.output[0]
        times, plus = factors.scale * scale.scale, bias
        result, divided = self._divided(name)
        if divided is not None:
            self._scaled |= {name, result}
            times = times / divided
            plus = None if plus is None else plus.astype(np.float64) / divided
        if scale.zero and not _pads(node):
            # What it adds to each column goes where the bias is. (Around an image it has to be.)
            before = 0.0 if plus is None else plus.astype(np.float64).reshape(-1)
            plus = before - factors.sums() * scale.zero * times
            scale = replace(scale, zero=0)
        self._write(node, self._whole(data.input[0], scale, name), factors, times, plus)
        return True

    def _write(
        self,
        node: onnx.NodeProto,
        data: str,
        factors: _Factors,
        times: NDArray[np.float64],
        plus: NDArray[Any] | None,
    ) -> None:
        """The product of whole numbers, `times` and `plus` for each column of it. With few filters
        a group there are no products for instructions to speak of (`relax.merged_groups`): there
        the weights are multiplied instead."""
        name, convolution = node.output[0], node.op_type == "Conv"
        columns, groups = factors.columns, attribute(node, "group", 1) if convolution else 1
        single = groups > 1 and columns // groups < FEW
        shape = (1, columns, 1, 1) if convolution else (columns,)
        times = np.broadcast_to(times, (columns,))
        weights = factors.numbers * (times.reshape(-1, 1, 1, 1) if single else 1)
        steps = [] if single else [("Mul", times)]
        if plus is not None:
            steps.append(("Add", np.broadcast_to(plus.reshape(-1), (columns,))))
        results = [*(f"{name}::{place}" for place in range(len(steps))), name]
        operands = [data, self._float(f"{name}::weights", weights)]
        made = self._emit("Conv" if convolution else "MatMul", operands, results[0])
        if convolution:
            self._nodes[-1].attribute.extend(node.attribute)
        for (kind, values), result in zip(steps, results[1:], strict=True):
            by = self._float(f"{result}::{kind}", values.reshape(shape))
            made = self._emit(kind, [made, by], result)

    def _factors(self, node: onnx.NodeProto) -> _Factors | None:
        """The second operand, where it is of constants that are whole numbers of 8 bits, with one
        scale for each column of the result."""
        made = self._makers.get(node.input[1])
        if made is None or made.op_type != DEQUANTISE:
            return None
        if any(name and name not in self._graph.constants for name in made.input):
            return None
        numbers, scale = (self._graph.constants[name] for name in made.input[:2])
        if attribute(made, "block_size", 0) or numbers.dtype.name not in BYTES:
            return None
        axis = attribute(made, "axis", 1) % numbers.ndim
        whole = numbers.astype(np.int32) - _along(numbers, axis, self._zero(made), np.int32)
        if whole.min(initial=0) < -128 or whole.max(initial=0) > 127:
            return None
        column = 0
        if node.op_type == "Conv":
            if numbers.ndim != 4:
                return None
        else:
            column = 1
            if numbers.ndim != 2:
                return None
            if node.op_type == "Gemm":
                if attribute(node, "transA", 0) or any(
                    attribute(node, name, 1.0) != 1.0 for name in ("alpha", "beta")
                ):
                    return None
                if attribute(node, "transB", 0):
                    whole, axis = whole.T, 1 - axis
        if scale.size > 1 and axis != column:
            return None
        return _Factors(np.ascontiguousarray(whole), scale.astype(np.float64).reshape(-1), column)

    def _divided(self, name: str) -> tuple[str, float | None]:
        """What quantises a product's result, with at most a rectifier between: the tensor that it
        reads, and its scale; which the product may then divide by."""
        for _ in range(2):
            group = self._readers.get(name, [])
            if self._used[name] != 1 or len(group) != 1:
                break
            (reader,) = group
            if reader.op_type == QUANTISE:
                scale = scale_of(self._graph, reader)
                return name, None if scale is None else scale.scale
            if reader.op_type != "Relu":
                break
            name = reader.output[0]
        return name, None


def _pads(node: onnx.NodeProto) -> bool:
    """Whether a product reads beyond the ends of its data."""
    automatic = attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
    return automatic or any(attribute(node, "pads", []))


def _along(numbers: Array, axis: int, values: Array, dtype: type) -> NDArray[Any]:
    """Values of this type for each index along an axis of `numbers`, or one for all of them, in a
    shape that goes with theirs."""
    shape = [1] * numbers.ndim
    if values.size > 1:
        shape[axis] = values.size
    return values.astype(dtype).reshape(shape)
