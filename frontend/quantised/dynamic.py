"""Tensors that are quantised by what is in them: the scale and the zero are known when the model
runs.

The importer computes something else of `DynamicQuantizeLinear` and of products of whole numbers
with zeros. Here the first is spelled as the arithmetic that ONNX defines it by, and a product by
constants as one of the numbers as they are, less what the data's zero adds to each sum (at the
borders of an image fewer weights meet it): so `relax.whole` can make integers of it. Elsewhere, and
of two tensors, products are computed in floating point, and right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tunefarm.frontend.dtypes import BYTES
from tunefarm.frontend.onnx.passes import Graph, attribute

_QUANTISE, _MATRICES, _IMAGES = "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"
_PRODUCTS = (_MATRICES, _IMAGES)
DYNAMIC = frozenset({_QUANTISE, *_PRODUCTS})
_IN_FLOATS = {_MATRICES: "MatMul", _IMAGES: "Conv"}
_STEPS, _SHIFT = 255.0, 128.0
"""Between a tensor's smallest and largest number; between a number as uint8 and as int8."""
_AXES_ARE_INPUTS = 18  # the opset since which those of reductions are


def spell_dynamic(graph: Graph, wanted: str) -> None:
    """Writes the operators of `DYNAMIC` anew, all but those whose zeros are not known.

    Args:
        wanted: of the data of products, ``uint8`` or ``int8``.
    """
    if DYNAMIC & {node.op_type for node in graph.nodes}:
        _Speller(graph, wanted).run()


@dataclass(frozen=True)
class _Zero:
    """Of a quantised tensor: the name that the model has for it, and the one that it has here, in
    float32 with as many axes as the tensor."""

    name: str
    place: str


class _Speller:
    def __init__(self, graph: Graph, wanted: str) -> None:
        self._graph, self._wanted = graph, wanted
        self._nodes: list[onnx.NodeProto] = []
        self._own: dict[str, _Zero] = {}
        """By a tensor's numbers."""
        self._zeros: dict[str, str] = {}
        """In float32, as of uint8, by the name that the model has for it."""
        self._renamed: dict[str, str] = {}
        of_images = any(node.op_type == _IMAGES for node in graph.nodes)
        self._shapes = _shapes(graph) if of_images else {}
        self._makers = {name: node for node in graph.nodes for name in node.output}
        self._readers = graph.readers()

    def run(self) -> None:
        for node in self._graph.nodes:
            if node.op_type == _QUANTISE:
                self._quantise(node)
            elif not (node.op_type in _PRODUCTS and self._product(node)):
                self._nodes.append(node)
        self._graph.nodes = [
            node for node in self._nodes if not set(node.output) <= set(self._renamed)
        ]
        self._graph.rename(self._renamed)

    def _emit(self, kind: str, inputs: Sequence[str], result: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result

    def _float(self, name: str, values: Any) -> str:
        self._graph.constants[name] = np.asarray(values, np.float32)
        return name

    # ------------------------------------------------------------------------------ tensors

    def _quantise(self, node: onnx.NodeProto) -> None:
        """As ONNX defines it; zero is always among the values that can be told."""
        (x,) = node.input
        numbers, scale, zero = node.output
        at = f"{numbers}::"
        nothing = self._float(f"{at}nothing", 0.0)
        most = self._emit("Clip", [self._extreme("Max", x, f"{at}max"), nothing], f"{at}most")
        least = self._extreme("Min", x, f"{at}min")
        least = self._emit("Clip", [least, "", nothing], f"{at}least")
        span = self._emit("Sub", [most, least], f"{at}span")
        step = self._emit("Div", [span, self._float(f"{at}steps", _STEPS)], f"{at}step")
        empty = self._emit("Equal", [span, nothing], f"{at}empty")
        one = self._float(f"{at}one", 1.0)  # as ONNX Runtime has it; the standard is silent
        step = self._emit("Where", [empty, one, step], f"{at}scale")
        below = self._emit("Neg", [self._emit("Div", [least, step], f"{at}low")], f"{at}below")
        ends = [self._float(f"{at}{end}", end) for end in (0.0, _STEPS)]
        place = self._emit("Round", [self._emit("Clip", [below, *ends], f"{at}in")], f"{at}zero")
        steps = self._emit("Round", [self._emit("Div", [x, step], f"{at}by")], f"{at}rounded")
        moved = self._emit("Add", [steps, place], f"{at}moved")
        self._scale(scale, step, numbers)
        self._zeros[zero] = place
        if not self._only_own(zero, numbers, zero):
            narrow = self._emit("Cast", [place], f"{at}zero8", to=TensorProto.UINT8)
            self._emit("Squeeze", [narrow], zero)
        kind: type[np.generic] = np.uint8
        if self._wanted == "int8" and self._only_own(numbers, numbers, zero):
            by = self._float(f"{at}shift", _SHIFT)
            moved = self._emit("Sub", [moved, by], f"{at}shifted")
            place = self._emit("Sub", [place, by], f"{at}zero-shifted")
            kind = np.int8
        self._graph.constants[f"{at}none"] = np.zeros((), kind)
        self._emit("QuantizeLinear", [moved, one, f"{at}none"], numbers)  # bounds them
        self._own[numbers] = _Zero(zero, place)

    def _extreme(self, kind: str, x: str, at: str) -> str:
        """Of all elements: of each row first, for there are many of those, and then of these."""
        axes: dict[str, Any] = {"axes": [-1]}
        inputs = [x]
        if self._graph.opset >= _AXES_ARE_INPUTS:
            self._graph.constants[f"{at}::axes"] = np.array([-1], np.int64)
            inputs, axes = [x, f"{at}::axes"], {}
        rows = self._emit(f"Reduce{kind}", inputs, f"{at}::rows", keepdims=1, **axes)
        return self._emit(f"Reduce{kind}", [rows], at, keepdims=1)

    def _scale(self, name: str, step: str, numbers: str) -> None:
        """The scale, which has no axes, under its name; as `step`, which has some, where all that
        is done with it is to be multiplied by constants, and to scale products of `numbers`, which
        have as many."""
        readers = self._readers[name]
        by = [result for reader in readers for result in reader.output]
        if (
            name not in self._graph.outputs
            and self._graph.outputs.isdisjoint(by)
            and all(self._is_times_constant(reader) for reader in readers)
            and all(self._scales(reader, numbers) for one in by for reader in self._readers[one])
        ):
            self._renamed[name] = step
        else:
            self._emit("Squeeze", [step], name)

    def _is_times_constant(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Mul" and any(name in self._graph.constants for name in node.input)

    def _scales(self, node: onnx.NodeProto, numbers: str) -> bool:
        return node.op_type == "Mul" and any(self._is_of(name, numbers) for name in node.input)

    def _is_of(self, name: str, numbers: str) -> bool:
        """Whether it is a product of `numbers`, as it is or in floating point."""
        node = self._makers.get(name)
        if node is not None and node.op_type == "Cast":
            node = self._makers.get(node.input[0])
        return node is not None and node.op_type in _PRODUCTS and node.input[0] == numbers

    def _only_own(self, name: str, numbers: str, zero: str) -> bool:
        """Whether only products of `numbers` with their own `zero` read one of them."""
        return name not in self._graph.outputs and all(
            reader.op_type in _PRODUCTS
            and (reader.input[0], *reader.input[2:3]) == (numbers, zero)
            and {numbers, zero}.isdisjoint((reader.input[1], *reader.input[3:]))
            and self._has_known_weights(reader)
            for reader in self._readers[name]
        )

    def _has_known_weights(self, node: onnx.NodeProto) -> bool:
        """As far as a product of a tensor and its own zero can be spelled."""
        w, zero = (*node.input[1:2], *node.input[3:], "")[:2]
        known = self._graph.constants
        if not zero or (zero in known and (w in known or known[zero].size == 1)):
            return True
        maker = self._makers.get(zero)
        return w not in known and maker is not None and maker.op_type == _QUANTISE

    # ----------------------------------------------------------------------------- products

    def _product(self, node: onnx.NodeProto) -> bool:
        """Whether it is spelled: where each of both has one zero, or the weights are constants."""
        x, w, x_zero, w_zero = (*node.input, "", "")[:4]
        (result,) = node.output
        zero, weights = self._zero_of(x, x_zero), self._weights(node, w, w_zero)
        if zero is None:
            return False
        added = self._added(node, weights) if weights is not None else None
        if weights is not None and added is not None:
            made = self._by_constants(node, zero, weights, added)
        else:
            name = f"{result}::weights"
            if weights is not None:
                factors: str | None = self._float(name, weights)
            else:
                factors = self._less(w, self._zero_of(w, w_zero), name)
            if factors is None:
                return False
            data = self._less(x, zero, f"{result}::data")
            made = self._emit(_IN_FLOATS[node.op_type], [str(data), factors], f"{result}::sums")
            self._nodes[-1].attribute.extend(node.attribute)
        self._in_floats(result, made)
        return True

    def _by_constants(
        self,
        node: onnx.NodeProto,
        zero: str,
        weights: NDArray[np.float32],
        added: NDArray[np.float64],
    ) -> str:
        """Of the numbers as they are; what their zero adds to each sum is taken off."""
        (result,) = node.output
        factors = self._float(f"{result}::weights", weights)
        data = self._whole(node.input[0], f"{result}::data")
        made = self._emit(_IN_FLOATS[node.op_type], [data, factors], f"{result}::sums")
        self._nodes[-1].attribute.extend(node.attribute)
        if not zero:
            return made
        by = self._float(f"{result}::columns", added)
        return self._emit(
            "Sub", [made, self._emit("Mul", [zero, by], f"{result}::of-zero")], f"{result}::float"
        )

    def _added(
        self, node: onnx.NodeProto, weights: NDArray[np.float32]
    ) -> NDArray[np.float64] | None:
        """By a zero of one to each sum, in a shape that goes with the result's; None where it is
        not known here, or where the product is none of 8 bits: it is better off in another form."""
        if weights.min(initial=0) < -128 or weights.max(initial=0) > 127:
            return None
        if node.op_type == _MATRICES:
            columns: NDArray[np.float64] = weights.sum(
                axis=-2, keepdims=weights.ndim > 2, dtype=np.float64
            )
            return columns
        image = self._shapes.get(node.input[0], ())
        if weights.ndim != 4 or attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            return None
        pads = attribute(node, "pads", [0] * 4)
        taps = weights.sum(axis=1, dtype=np.float64)
        if not any(pads):
            return np.asarray(taps.sum(axis=(1, 2)).reshape(1, -1, 1, 1), np.float64)
        if len(image) != 4 or not all(image[2:]):
            return None
        strides, steps = (attribute(node, name, [1, 1]) for name in ("strides", "dilations"))
        down, across = (
            _inside(
                image[2 + axis], taps.shape[1 + axis], strides[axis], steps[axis], pads[axis::2]
            )
            for axis in range(2)
        )
        sums: NDArray[np.float64] = np.einsum("yk,xl,okl->oyx", down, across, taps)
        return sums[np.newaxis]

    def _less(self, tensor: str, zero: str | None, result: str) -> str | None:
        """The numbers less their zero in float32, None where that is not known."""
        if zero is None:
            return None
        if not zero:
            return self._whole(tensor, result)
        return self._emit("Sub", [self._whole(tensor, f"{result}-whole"), zero], result)

    def _whole(self, numbers: str, result: str) -> str:
        """In float32, written so that the change of layout passes through (`relax.spelled`)."""
        return self._emit("DequantizeLinear", [numbers, self._float("::one", 1.0)], result)

    def _weights(self, node: onnx.NodeProto, name: str, zero: str) -> NDArray[np.float32] | None:
        """Less their zeros, of which there may be one for each column; None where they are none of
        constants."""
        known = self._graph.constants
        if name not in known or (zero and zero not in known) or known[name].dtype.name not in BYTES:
            return None
        less = known[zero].astype(np.float32) if zero else np.zeros((), np.float32)
        if node.op_type == _IMAGES and less.size > 1:
            less = less.reshape(-1, *(1,) * (known[name].ndim - 1))
        return np.asarray(known[name].astype(np.float32) - less, np.float32)

    def _zero_of(self, x: str, zero: str) -> str | None:
        """Of a tensor, in float32; "" where it is nothing, None where it is not known here, or is
        one for each row."""
        if not zero:
            return ""
        if x in self._own and self._own[x].name == zero:
            return self._own[x].place
        if zero in self._zeros:  # of a tensor that was moved since
            return self._emit("Squeeze", [self._zeros[zero]], f"{x}::{zero}::alone")
        value = self._graph.constants.get(zero)
        if value is None or value.size != 1:
            return None
        number = float(value.astype(np.float32).reshape(()))
        return self._float(f"{x}::{zero}", number) if number else ""

    def _in_floats(self, result: str, made: str) -> None:
        """Whoever reads the product in floating point finds it there."""
        casts = [
            reader
            for reader in self._readers[result]
            if reader.op_type == "Cast"
            and attribute(reader, "to", 0) == TensorProto.FLOAT
            and reader.output[0] not in self._graph.outputs
        ]
        self._renamed.update({one.output[0]: made for one in casts})
        if len(casts) < len(self._readers[result]) or result in self._graph.outputs:
            self._emit("Cast", [made], result, to=TensorProto.INT32)


def _inside(
    size: int, taps: int, stride: int, step: int, pads: Sequence[int]
) -> NDArray[np.float64]:
    """For each place of a window along one axis of an image, whether each of its taps is in it."""
    places = (size + sum(pads) - step * (taps - 1) - 1) // stride + 1
    at = stride * np.arange(places)[:, None] + step * np.arange(taps)[None, :] - pads[0]
    return ((at >= 0) & (at < size)).astype(np.float64)


def _shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Of tensors, as far as they are known; 0 for what is not."""
    found = graph.inferred()
    values = (*found.value_info, *found.input)
    return {
        one.name: tuple(dim.dim_value for dim in one.type.tensor_type.shape.dim) for one in values
    }
