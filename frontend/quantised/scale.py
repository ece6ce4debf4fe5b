"""What a tensor of 8 bits stands for: a scale and a zero, as nodes say that make or read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from tunefarm.frontend.dtypes import BYTES
from tunefarm.frontend.onnx.passes import Array, Graph, attribute

QUANTISE, DEQUANTISE = "QuantizeLinear", "DequantizeLinear"
_SHIFT = 128
"""Between a number as int8 and as uint8."""


@dataclass(frozen=True)
class Scale:
    """value = scale * (number - zero), the same for all of a tensor."""

    scale: float
    zero: int
    dtype: str

    def as_type(self, dtype: str) -> Scale:
        """The same values with numbers of another type."""
        if dtype == self.dtype:
            return self
        shift = _SHIFT if dtype == "uint8" else -_SHIFT
        return Scale(self.scale, self.zero + shift, dtype)

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the largest number."""
        found = np.iinfo(self.dtype)
        return int(found.min), int(found.max)

    def number(self, value: float) -> float:
        """What quantising makes of a value: half a step comes to the even number, and what is
        beyond an end to the end."""
        low, high = self.ends
        return float(np.clip(np.rint(value / self.scale) + self.zero, low, high))


def scale_of(graph: Graph, node: onnx.NodeProto) -> Scale | None:
    """Of a node that quantises, or the contrary; None where it is not known, or not one number."""
    scale = graph.constants.get(node.input[1])
    if scale is None or scale.size != 1 or scale.dtype != np.float32:
        return None
    zero: Array | None = np.zeros((), np.uint8)
    if len(node.input) > 2 and node.input[2]:
        zero = graph.constants.get(node.input[2])
    elif node.op_type == DEQUANTISE or attribute(node, "output_dtype", 0) not in (0, 2):
        return None  # of what type its numbers are is said elsewhere
    if zero is None or zero.size != 1 or zero.dtype.name not in BYTES:
        return None
    return Scale(float(scale.reshape(())), int(zero.reshape(())), zero.dtype.name)


def put_scale(graph: Graph, node: onnx.NodeProto, scale: Scale) -> None:
    names = [f"{node.output[0]}::scale", f"{node.output[0]}::zero"]
    graph.constants[names[0]] = np.array(scale.scale, np.float32)
    graph.constants[names[1]] = np.array(scale.zero, np.int64).astype(scale.dtype)
    del node.input[1:]
    node.input.extend(names)
