"""Tensors that are quantised by what is in them: the scale and the zero are known when the model
runs.

The importer computes something else of `DynamicQuantizeLinear` and of products of whole numbers
with zeros. Here the first is spelled as the arithmetic that ONNX defines it by, and a product as
one of the numbers as they are, less what the data's zero adds to each column: so `relax_whole` can
make integers of it. Elsewhere, and in convolutions, whose borders are not zeros but *the* zero, the
model is computed in floating point, and right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tunefarm.frontend.dtypes import BYTES
from tunefarm.frontend.onnx_passes import Graph, attribute

_QUANTISE, _MATRICES, _IMAGES = "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"
DYNAMIC = frozenset({_QUANTISE, _MATRICES, _IMAGES})
_STEPS, _SHIFT = 255.0, 128.0
"""Between a tensor's smallest and largest number; between a number as uint8 and as int8."""
_AXES_ARE_INPUTS = 18  # the opset since which those of reductions are


def spell_dynamic(graph: Graph, wanted: str) -> None:
    """
    Args:
        wanted: of the data of products, ``uint8`` or ``int8``.
    """
    if DYNAMIC & {node.op_type for node in graph.nodes}:
        _Speller(graph, wanted).run()


@dataclass(frozen=True)
class _Tensor:
    """A quantised tensor's names: its numbers, and its zero in float32, with as many axes."""

    numbers: str
    zero: str


class _Speller:
    def __init__(self, graph: Graph, wanted: str) -> None:
        self._graph, self._wanted = graph, wanted
        self._nodes: list[onnx.NodeProto] = []
        self._quantised: dict[str, _Tensor] = {}
        self._zeros: dict[str, str] = {}
        """In float32, by the zero that is read."""
        self._renamed: dict[str, str] = {}
        self._readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in graph.nodes:
            for name in node.input:
                self._readers[name].append(node)

    def run(self) -> None:
        for node in self._graph.nodes:
            if node.op_type == _QUANTISE:
                self._quantise(node)
            elif not (node.op_type in (_MATRICES, _IMAGES) and self._product(node)):
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
        ends = []
        for kind, bounds in (("Max", ["", ""]), ("Min", ["", ""])):
            end = self._extreme(kind, x, f"{at}{kind}")
            bounds[kind == "Min"] = self._float(f"{at}nothing", 0.0)
            ends.append(self._emit("Clip", [end, *bounds], f"{at}{kind}0"))
        span = self._emit("Sub", ends, f"{at}span")
        step = self._emit("Div", [span, self._float(f"{at}steps", _STEPS)], f"{at}step")
        empty = self._emit("Equal", [span, self._float(f"{at}nothing", 0.0)], f"{at}empty")
        one = self._float(f"{at}one", 1.0)  # as ONNX Runtime has it; the standard is silent
        step = self._emit("Where", [empty, one, step], f"{at}scale")
        below = self._emit("Neg", [self._emit("Div", [ends[1], step], f"{at}low")], f"{at}below")
        zero_float = self._emit("Round", [self._bounded(below, f"{at}inside")], f"{at}zero")
        steps = self._emit("Round", [self._emit("Div", [x, step], f"{at}by")], f"{at}rounded")
        moved = self._emit("Add", [steps, zero_float], f"{at}moved")
        whole = self._bounded(moved, f"{at}bounded")
        self._named(scale, step)
        self._zeros[zero] = zero_float
        if not self._only_products(zero):
            narrow = self._emit("Cast", [zero_float], f"{at}zero8", to=TensorProto.UINT8)
            self._emit("Squeeze", [narrow], zero)
        if self._wanted == "int8" and self._only_products(numbers):
            by = self._float(f"{at}shift", _SHIFT)
            whole = self._emit("Sub", [whole, by], f"{at}shifted")
            zero_float = self._emit("Sub", [zero_float, by], f"{at}zero-shifted")
            self._emit("Cast", [whole], numbers, to=TensorProto.INT8)
        else:
            self._emit("Cast", [whole], numbers, to=TensorProto.UINT8)
        self._quantised[numbers] = _Tensor(numbers, zero_float)

    def _extreme(self, kind: str, x: str, at: str) -> str:
        """Of all elements: of each row first, for there are many of those, and then of these."""
        axes: dict[str, Any] = {"axes": [-1]}
        inputs = [x]
        if self._graph.opset >= _AXES_ARE_INPUTS:
            self._graph.constants[f"{at}::axes"] = np.array([-1], np.int64)
            inputs, axes = [x, f"{at}::axes"], {}
        rows = self._emit(f"Reduce{kind}", inputs, f"{at}::rows", keepdims=1, **axes)
        return self._emit(f"Reduce{kind}", [rows], at, keepdims=1)

    def _bounded(self, tensor: str, result: str) -> str:
        bounds = [self._float(f"{result}::{end}", end) for end in (0.0, _STEPS)]
        return self._emit("Clip", [tensor, *bounds], result)

    def _named(self, scale: str, step: str) -> None:
        """The scale, which has no axes, under its name; as `step`, which has some, where all that
        is done with it is to multiply something that has as many."""
        products = [one for one in self._readers[scale] if one.op_type == "Mul"]
        inside = all(set(one.output).isdisjoint(self._graph.outputs) for one in products)
        if len(products) == len(self._readers[scale]) and inside and self._scales(products):
            self._renamed[scale] = step
        else:
            self._emit("Squeeze", [step], scale)

    def _scales(self, products: Sequence[onnx.NodeProto]) -> bool:
        """Whether what these make, of a scale and constants, scales nothing but what products of
        this module have made."""
        made = [name for one in products for name in one.output]
        readers = [reader for name in made for reader in self._readers[name]]
        return all(
            sum(name in self._graph.constants for name in one.input) == 1 for one in products
        ) and all(
            reader.op_type == "Mul" and any(self._is_sum(name) for name in reader.input)
            for reader in readers
        )

    def _is_sum(self, name: str) -> bool:
        """Whether it is a product of whole numbers, as it is or in floating point."""
        makers = (node for node in self._graph.nodes if name in node.output)
        node = next(makers, None)
        if node is not None and node.op_type == "Cast":
            return self._is_sum(node.input[0])
        return node is not None and node.op_type in (_MATRICES, _IMAGES)

    def _only_products(self, name: str) -> bool:
        """Whether only products of this module read it, as their data or its zero."""
        return name not in self._graph.outputs and all(
            reader.op_type in (_MATRICES, _IMAGES)
            and name not in (*reader.input[1:2], *reader.input[3:])
            and reader.input[0] in self._pairs(name)
            for reader in self._readers[name]
        )

    def _pairs(self, name: str) -> set[str]:
        """The numbers that `name`, or the zero of that name, belongs to."""
        return {
            node.output[0]
            for node in self._graph.nodes
            if node.op_type == _QUANTISE and name in node.output
        }

    # ----------------------------------------------------------------------------- products

    def _product(self, node: onnx.NodeProto) -> bool:
        """Whether it is spelled: where each of both has one zero, or the weights are constants."""
        x, w, x_zero, w_zero = (*node.input, "", "")[:4]
        (result,) = node.output
        zero, weights = self._zero_of(x, x_zero), self._weights(node, w, w_zero)
        if zero is None:
            return False
        if node.op_type == _MATRICES and weights is not None:
            made = self._by_constants(result, x, zero, weights)
        else:
            name = f"{result}::weights"
            if weights is not None:
                factors: str | None = self._float(name, weights)
            else:
                factors = self._less(w, self._zero_of(w, w_zero), name)
            if factors is None:
                return False
            data = self._less(x, zero, f"{result}::data")
            kind = "MatMul" if node.op_type == _MATRICES else "Conv"
            made = self._emit(kind, [str(data), factors], f"{result}::sums")
            self._nodes[-1].attribute.extend(node.attribute)
        self._in_floats(result, made)
        return True

    def _by_constants(self, result: str, x: str, zero: str, weights: NDArray[np.float32]) -> str:
        """Of the numbers as they are; what their zero adds to each column is taken off."""
        factors = self._float(f"{result}::weights", weights)
        data = self._emit("Cast", [x], f"{result}::data", to=TensorProto.FLOAT)
        made = self._emit("MatMul", [data, factors], f"{result}::sums")
        if not zero:
            return made
        sums = weights.sum(axis=-2, keepdims=weights.ndim > 2, dtype=np.float64)
        added = self._emit("Mul", [zero, self._float(f"{result}::columns", sums)], f"{result}::of0")
        return self._emit("Sub", [made, added], f"{result}::float")

    def _less(self, tensor: str, zero: str | None, result: str) -> str | None:
        """The numbers less their zero in float32, None where that is not known."""
        if zero is None:
            return None
        if not zero:
            return self._emit("Cast", [tensor], result, to=TensorProto.FLOAT)
        whole = self._emit("Cast", [tensor], f"{result}-whole", to=TensorProto.FLOAT)
        return self._emit("Sub", [whole, zero], result)

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
        """Of the data, in float32; "" where it is none, None where it is none that is known here,
        or one for each row."""
        if not zero:
            return ""
        if x in self._quantised and zero in self._zeros:
            return self._quantised[x].zero
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
