"""Transformers with seeded random weights, written node by node: an encoder like BERT-base's and a
decoder like a small GPT's, each from hidden states to hidden states.

Shapes are those of one sequence of 128 tokens. Encoders normalise after each sum, decoders before
each half of a block (Devlin et al. 2019; Radford et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper


@dataclass(frozen=True)
class Shape:
    """Sizes of a stack: layers, hidden units, heads, units of the inner layer, tokens."""

    layers: int
    hidden: int
    heads: int
    inner: int
    tokens: int
    causal: bool


SHAPES = {
    "encoder": Shape(4, 768, 12, 3072, 128, causal=False),
    "decoder": Shape(2, 512, 8, 2048, 128, causal=True),
}


def transformer(name: str, seed: int = 0) -> onnx.ModelProto:
    """The network `name` of `SHAPES`: input and output ``hidden`` and ``result``, both of shape
    (1, tokens, hidden), float32."""
    shape = SHAPES[name]
    stack = _Stack(shape, np.random.default_rng(seed))
    state = "hidden"
    for _ in range(shape.layers):
        state = stack.block(state)
    result = stack.norm(state) if shape.causal else state
    stack.nodes.append(helper.make_node("Identity", [result], ["result"]))
    tensor = [1, shape.tokens, shape.hidden]
    graph = helper.make_graph(
        stack.nodes,
        name,
        [helper.make_tensor_value_info("hidden", onnx.TensorProto.FLOAT, tensor)],
        [helper.make_tensor_value_info("result", onnx.TensorProto.FLOAT, tensor)],
        stack.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.producer_name = "tunefarm"
    return model


class _Stack:
    """Nodes and constants of the graph so far; each method adds some, and returns its result's
    name."""

    def __init__(self, shape: Shape, generator: np.random.Generator) -> None:
        self._shape = shape
        self._generator = generator
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def block(self, state: str) -> str:
        if self._shape.causal:
            state = self._add(state, self._attention(self.norm(state)))
            return self._add(state, self._inner(self.norm(state)))
        state = self.norm(self._add(state, self._attention(state)))
        return self.norm(self._add(state, self._inner(state)))

    def norm(self, x: str) -> str:
        hidden = self._shape.hidden
        scale = self._constant(1 + 0.1 * self._normal(hidden))
        return self._node("LayerNormalization", x, scale, self._vector(hidden), axis=-1)

    def _attention(self, x: str) -> str:
        shape = self._shape
        size = shape.hidden // shape.heads
        queries = self._heads(self._dense(x, shape.hidden, shape.hidden), [0, 2, 1, 3])
        keys = self._heads(self._dense(x, shape.hidden, shape.hidden), [0, 2, 3, 1])
        values = self._heads(self._dense(x, shape.hidden, shape.hidden), [0, 2, 1, 3])
        scores = self._node("MatMul", queries, keys)
        scores = self._node("Div", scores, self._constant(np.array(np.sqrt(size))))
        if shape.causal:
            later = np.triu(np.full((shape.tokens, shape.tokens), -1e9), k=1)
            scores = self._add(scores, self._constant(later))
        mixed = self._node("MatMul", self._node("Softmax", scores, axis=-1), values)
        mixed = self._node("Transpose", mixed, perm=[0, 2, 1, 3])
        whole = self._integers([1, shape.tokens, shape.hidden])
        return self._dense(self._node("Reshape", mixed, whole), shape.hidden, shape.hidden)

    def _heads(self, x: str, order: list[int]) -> str:
        shape = self._shape
        split = self._integers([1, shape.tokens, shape.heads, shape.hidden // shape.heads])
        return self._node("Transpose", self._node("Reshape", x, split), perm=order)

    def _inner(self, x: str) -> str:
        shape = self._shape
        wide = self._dense(x, shape.hidden, shape.inner)
        return self._dense(self._gelu(wide), shape.inner, shape.hidden)

    def _gelu(self, x: str) -> str:
        """x/2 (1 + erf(x / sqrt 2))"""
        erf = self._node("Erf", self._node("Div", x, self._constant(np.array(np.sqrt(2)))))
        above = self._add(erf, self._constant(np.array(1.0)))
        half = self._node("Mul", x, self._constant(np.array(0.5)))
        return self._node("Mul", half, above)

    def _dense(self, x: str, rows: int, columns: int) -> str:
        weights = self._constant(self._normal(rows, columns) / np.sqrt(rows))
        return self._add(self._node("MatMul", x, weights), self._vector(columns))

    def _add(self, left: str, right: str) -> str:
        return self._node("Add", left, right)

    def _vector(self, size: int) -> str:
        return self._constant(0.02 * self._normal(size))

    def _normal(self, *shape: int) -> NDArray[np.float64]:
        return self._generator.normal(0, 1, shape)

    def _constant(self, values: NDArray[np.float64]) -> str:
        return self._keep(values.astype(np.float32))

    def _integers(self, values: list[int]) -> str:
        return self._keep(np.array(values, np.int64))

    def _keep(self, values: NDArray[np.float32] | NDArray[np.int64]) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def _node(self, kind: str, *inputs: str, **attributes: int | list[int]) -> str:
        result = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result
