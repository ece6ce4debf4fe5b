"""A network that reads lines of text, with seeded random weights: convolutions over a picture, then
two recurrences in both directions over its columns (Shi, Bai and Yao 2015).

The picture is (1, 1, 32, 100), grey; the results, (26, 1, 37), score a blank, digits and letters
for each column.
"""

from __future__ import annotations

import numpy as np
import onnx

from tunefarm.frontend.onnx.writer import Writer

NAME = "crnn"
_HEIGHT, _WIDTH, _SIGNS, _UNITS = 32, 100, 37, 256
_STEPS = 26
_CHANNELS = 64, 128, 256, 256, 512, 512
_POOLS = {0: (2, 2), 1: (2, 2), 3: (2, 1), 5: (2, 1)}
"""After which convolutions, and by how much a picture's rows and columns become fewer."""


def crnn(seed: int = 0) -> onnx.ModelProto:
    writer = Writer(seed)
    x, channels = "picture", 1
    for number, filters in enumerate(_CHANNELS):
        x = _convolution(writer, x, channels, filters, 3, [1] * 4)
        if number in _POOLS:
            rows, columns = _POOLS[number]
            kernel = {"kernel_shape": [2, 2], "strides": [rows, columns]}
            x = writer.node("MaxPool", x, **kernel, pads=[0, columns % 2] * 2)
        channels = filters
    x = _convolution(writer, x, channels, channels, 2, [0] * 4)
    x = writer.node("Squeeze", x, writer.integers([2]))
    x = writer.node("Transpose", x, perm=[2, 0, 1])
    for results in (_UNITS, _SIGNS):
        x = _dense(writer, _both_ways(writer, x, channels), 2 * _UNITS, results)
        channels = results
    picture = ("picture", (1, 1, _HEIGHT, _WIDTH))
    return writer.model(NAME, picture, ("signs", x, (_STEPS, 1, _SIGNS)), opset=14)


def _convolution(
    writer: Writer, x: str, channels: int, filters: int, taps: int, pads: list[int]
) -> str:
    scale = np.sqrt(2 / (channels * taps * taps))
    weights = writer.constant(scale * writer.normal(filters, channels, taps, taps))
    bias = writer.constant(0.02 * writer.normal(filters))
    return writer.node("Relu", writer.node("Conv", x, weights, bias, pads=pads))


def _both_ways(writer: Writer, x: str, width: int) -> str:
    """A recurrence in both directions, whose states lie side by side: (steps, 1, 2 * units)."""
    scale = 1 / np.sqrt(_UNITS)
    parts = ((2, 4 * _UNITS, width), (2, 4 * _UNITS, _UNITS), (2, 8 * _UNITS))
    weights = (writer.constant(scale * writer.normal(*shape)) for shape in parts)
    states = writer.node("LSTM", x, *weights, hidden_size=_UNITS, direction="bidirectional")
    rows = writer.node("Transpose", states, perm=[0, 2, 1, 3])
    return writer.node("Reshape", rows, writer.integers([0, 0, -1]))


def _dense(writer: Writer, x: str, width: int, results: int) -> str:
    weights = writer.constant(writer.normal(width, results) / np.sqrt(width))
    bias = writer.constant(0.02 * writer.normal(results))
    return writer.node("Add", writer.node("MatMul", x, weights), bias)
