"""Transformers with seeded random weights, written node by node: encoders like BERT-base's and a
decoder like a small GPT's, each from hidden states to hidden states, and a small one for pictures.

Shapes are those of one sequence of 128 tokens, of the long encoder 512. Encoders normalise after
each sum, decoders before each half of a block, as do those for pictures, which see a picture as 196
squares and a token more, that is classified (Devlin et al. 2019; Radford et al. 2019; Dosovitskiy
et al. 2021, ViT-S/16 as in Touvron et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from tunefarm.frontend.onnx.writer import Writer


@dataclass(frozen=True)
class Shape:
    """Sizes of a stack: layers, hidden units, heads, units of the inner layer, tokens.

    Attributes:
        before: it normalises before each half of a block, and at the end.
        causal: a token sees none after it.
    """

    layers: int
    hidden: int
    heads: int
    inner: int
    tokens: int
    before: bool = False
    causal: bool = False


SIDE, SQUARE, CLASSES = 224, 16, 1000
"""Of a picture and of the squares that it is cut into, pixels; and what pictures are told apart
into."""
PICTURES = "vit_small"
SHAPES = {
    "encoder": Shape(4, 768, 12, 3072, 128),
    "long_encoder": Shape(2, 768, 12, 3072, 512),
    "decoder": Shape(2, 512, 8, 2048, 128, before=True, causal=True),
    PICTURES: Shape(12, 384, 6, 1536, (SIDE // SQUARE) ** 2 + 1, before=True),
}


def transformer(name: str, seed: int = 0) -> onnx.ModelProto:
    """The network `name` of `SHAPES`: input and output ``hidden`` and ``result``, both of shape
    (1, tokens, hidden), float32; of pictures ``picture`` and ``result``, of (1, 3, height, width)
    and (1, classes)."""
    shape = SHAPES[name]
    stack = _Stack(shape, Writer(seed))
    pictures = name == PICTURES
    state = stack.squares("picture") if pictures else "hidden"
    for _ in range(shape.layers):
        state = stack.block(state)
    result = stack.norm(state) if shape.before else state
    tensor: tuple[int, ...] = (1, shape.tokens, shape.hidden)
    given, made = ("hidden", tensor), tensor
    if pictures:
        result = stack.classes(result)
        given, made = ("picture", (1, 3, SIDE, SIDE)), (1, CLASSES)
    return stack.writer.model(name, given, ("result", result, made), opset=17)


class _Stack:
    """Parts of such networks; each returns its result's name."""

    def __init__(self, shape: Shape, writer: Writer) -> None:
        self._shape = shape
        self.writer = writer

    def block(self, state: str) -> str:
        if self._shape.before:
            state = self._add(state, self._attention(self.norm(state)))
            return self._add(state, self._inner(self.norm(state)))
        state = self.norm(self._add(state, self._attention(state)))
        return self.norm(self._add(state, self._inner(state)))

    def squares(self, picture: str) -> str:
        """A picture's tokens, a product of each square's pixels, behind one that is learnt."""
        hidden, pixels = self._shape.hidden, 3 * SQUARE**2
        weights = self.writer.normal(hidden, 3, SQUARE, SQUARE) / np.sqrt(pixels)
        cut = self.writer.node(
            *("Conv", picture, self.writer.constant(weights), self._vector(hidden)),
            strides=[SQUARE, SQUARE],
        )
        lines = self.writer.integers([1, hidden, self._shape.tokens - 1])
        tokens = self.writer.node(
            "Transpose", self.writer.node("Reshape", cut, lines), perm=[0, 2, 1]
        )
        learnt = self.writer.constant(0.02 * self.writer.normal(1, 1, hidden))
        whole = self.writer.node("Concat", learnt, tokens, axis=1)
        places = 0.02 * self.writer.normal(1, self._shape.tokens, hidden)
        return self._add(whole, self.writer.constant(places))

    def classes(self, state: str) -> str:
        """What the first token says."""
        ends = (self.writer.integers([number]) for number in (0, 1, 1))
        first = self.writer.node("Slice", state, *ends)
        row = self.writer.node("Reshape", first, self.writer.integers([1, self._shape.hidden]))
        return self._dense(row, self._shape.hidden, CLASSES)

    def norm(self, x: str) -> str:
        hidden = self._shape.hidden
        scale = self.writer.constant(1 + 0.1 * self.writer.normal(hidden))
        return self.writer.node("LayerNormalization", x, scale, self._vector(hidden), axis=-1)

    def _attention(self, x: str) -> str:
        shape = self._shape
        size = shape.hidden // shape.heads
        queries = self._heads(self._dense(x, shape.hidden, shape.hidden), [0, 2, 1, 3])
        keys = self._heads(self._dense(x, shape.hidden, shape.hidden), [0, 2, 3, 1])
        values = self._heads(self._dense(x, shape.hidden, shape.hidden), [0, 2, 1, 3])
        scores = self.writer.node("MatMul", queries, keys)
        scores = self.writer.node("Div", scores, self.writer.constant(np.array(np.sqrt(size))))
        if shape.causal:
            later = np.triu(np.full((shape.tokens, shape.tokens), -1e9), k=1)
            scores = self._add(scores, self.writer.constant(later))
        mixed = self.writer.node("MatMul", self.writer.node("Softmax", scores, axis=-1), values)
        mixed = self.writer.node("Transpose", mixed, perm=[0, 2, 1, 3])
        whole = self.writer.integers([1, shape.tokens, shape.hidden])
        return self._dense(self.writer.node("Reshape", mixed, whole), shape.hidden, shape.hidden)

    def _heads(self, x: str, order: list[int]) -> str:
        shape = self._shape
        split = self.writer.integers([1, shape.tokens, shape.heads, shape.hidden // shape.heads])
        return self.writer.node("Transpose", self.writer.node("Reshape", x, split), perm=order)

    def _inner(self, x: str) -> str:
        shape = self._shape
        wide = self._dense(x, shape.hidden, shape.inner)
        return self._dense(self._gelu(wide), shape.inner, shape.hidden)

    def _gelu(self, x: str) -> str:
        """x/2 (1 + erf(x / sqrt 2))"""
        erf = self.writer.node(
            "Erf", self.writer.node("Div", x, self.writer.constant(np.array(np.sqrt(2))))
        )
        above = self._add(erf, self.writer.constant(np.array(1.0)))
        half = self.writer.node("Mul", x, self.writer.constant(np.array(0.5)))
        return self.writer.node("Mul", half, above)

    def _dense(self, x: str, rows: int, columns: int) -> str:
        weights = self.writer.constant(self.writer.normal(rows, columns) / np.sqrt(rows))
        return self._add(self.writer.node("MatMul", x, weights), self._vector(columns))

    def _add(self, left: str, right: str) -> str:
        return self.writer.node("Add", left, right)

    def _vector(self, size: int) -> str:
        return self.writer.constant(0.02 * self.writer.normal(size))
