"""Small networks of sizes that nothing divides, as ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

from tests.models import save, seeded


def products(path: Path) -> Path:
    """Of sizes that no tile divides: alone, with little after it, with an error function, and with
    a sentence or picture around the rows, whose number is a prime one as it is with 196 patches and
    one token more."""
    weights = seeded(0.2)
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["alone"]),
        helper.make_node("MatMul", ["a", "w1"], ["m1"]),
        helper.make_node("Add", ["m1", "r"], ["s1"]),
        helper.make_node("Relu", ["s1"], ["little"]),
        helper.make_node("MatMul", ["a", "w2"], ["m2"]),
        helper.make_node("Erf", ["m2"], ["much"]),
        helper.make_node("MatMul", ["c", "w3"], ["m3"]),
        helper.make_node("Relu", ["m3"], ["around"]),
    ]
    inputs = [("a", [29, 41]), ("b", [41, 37]), ("r", [29, 35]), ("c", [1, 29, 41])]
    outputs = [("alone", [29, 37]), ("little", [29, 35]), ("much", [29, 39])]
    outputs += [("around", [1, 29, 48])]
    constants = [("w1", weights(41, 35)), ("w2", weights(41, 39)), ("w3", weights(41, 48))]
    return save(path, nodes, inputs, outputs, constants)


def convolutions(path: Path) -> Path:
    """Of rows that no tile divides: convolutions with padding, a bias and an activation; with a
    sum; alone, with a stride, of groups, of two pictures with edges all around; of a sound that
    lies along either axis; and a product."""
    weights = seeded(0.1)
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b"], ["c1"], pads=[0, 3, 0, 3]),
        helper.make_node("Relu", ["c1"], ["bar"]),
        helper.make_node("Conv", ["bar", "w2"], ["c2"]),
        helper.make_node("Add", ["c2", "bar"], ["sum"]),
        helper.make_node(
            *("Conv", ["two", "w3"], ["alone"]), strides=[1, 2], group=2, pads=[1, 1, 1, 1]
        ),
        helper.make_node("Conv", ["s", "w4"], ["c4"], strides=[2], dilations=[2]),
        helper.make_node("Tanh", ["c4"], ["sound"]),
        helper.make_node("Conv", ["upright", "w5"], ["c5"]),
        helper.make_node("Sigmoid", ["c5"], ["along"]),
        helper.make_node("MatMul", ["words", "w6"], ["m6"]),
        helper.make_node("Add", ["m6", "words"], ["product"]),
    ]
    inputs = [("x", [1, 16, 17, 17]), ("two", [2, 32, 5, 39]), ("s", [1, 16, 47])]
    inputs += [("upright", [1, 16, 31, 1]), ("words", [1, 29, 48])]
    outputs = [("sum", [1, 48, 17, 17]), ("alone", [2, 64, 5, 20]), ("sound", [1, 32, 23])]
    outputs += [("along", [1, 32, 29, 1]), ("product", [1, 29, 48])]
    constants = [("w1", weights(48, 16, 1, 7)), ("b", weights(48)), ("w2", weights(48, 48, 1, 1))]
    constants += [("w3", weights(64, 16, 3, 3)), ("w4", weights(32, 16, 2))]
    constants += [("w5", weights(32, 16, 3, 1)), ("w6", weights(48, 48))]
    return save(path, nodes, inputs, outputs, constants)


def short_lines(path: Path) -> Path:
    """A convolution of 1x1 at 7x7, as networks of pictures end with."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    weights = [("w", seeded(0.1)(512, 128, 1, 1))]
    return save(path, nodes, [("x", [1, 128, 7, 7])], [("y", [1, 512, 7, 7])], weights)


def single_rows(path: Path) -> Path:
    """Products of one row with constants, of columns that vectors divide and that they do not; a
    convolution of one pixel; a vector times a matrix; a product of a few rows, whose weights are
    used again; and one with a matrix that is no constant. Of one the weights are many enough for
    several cores."""
    weights = seeded(0.1)
    nodes = [
        helper.make_node("MatMul", ["long", "w4"], ["wide"]),
        helper.make_node("MatMul", ["vector", "w2"], ["no_rows"]),
        helper.make_node("Gemm", ["x", "w1", "b"], ["g1"]),
        helper.make_node("Relu", ["g1"], ["even"]),
        helper.make_node("MatMul", ["x", "w2"], ["odd"]),
        helper.make_node("Conv", ["pixel", "w3"], ["c3"]),
        helper.make_node("Sigmoid", ["c3"], ["point"]),
        helper.make_node("MatMul", ["several", "w1"], ["few"]),
        helper.make_node("MatMul", ["query", "keys"], ["scores"]),
    ]
    inputs = [("x", [1, 96]), ("pixel", [1, 48, 1, 1]), ("several", [6, 96])]
    inputs += [("query", [3, 1, 40]), ("keys", [3, 40, 64]), ("long", [1, 512]), ("vector", [96])]
    outputs = [("even", [1, 80]), ("odd", [1, 77]), ("point", [1, 64, 1, 1]), ("few", [6, 80])]
    outputs += [("scores", [3, 1, 64]), ("wide", [1, 640]), ("no_rows", [77])]
    constants = [
        ("w4", weights(512, 640)),
        ("w1", weights(96, 80)),
        ("b", weights(80)),
        ("w2", weights(96, 77)),
    ]
    constants += [("w3", weights(64, 48, 1, 1))]
    return save(path, nodes, inputs, outputs, constants)


def rows(path: Path) -> Path:
    """What works on rows of 45 to 197 elements, which no vector divides: attention with a mask and
    without, a normalisation, logarithms, and the largest one taken away."""
    weights = seeded(1.0)
    nodes = [
        helper.make_node("Softmax", ["x"], ["plain"], axis=-1),
        helper.make_node("Add", ["x", "mask"], ["left"]),
        helper.make_node("Softmax", ["left"], ["masked"], axis=-1),
        helper.make_node("LayerNormalization", ["y", "g", "b"], ["normal"], axis=-1),
        helper.make_node("LogSoftmax", ["z"], ["logs"], axis=-1),
        helper.make_node("ReduceMax", ["z"], ["largest"], axes=[-1]),
        helper.make_node("Sub", ["z", "largest"], ["below"]),
    ]
    mask = np.zeros((1, 1, 197), np.float32)
    mask[..., 150:] = -np.inf
    inputs = [("x", [2, 3, 197]), ("y", [7, 45]), ("z", [3, 4, 77])]
    outputs = [("plain", [2, 3, 197]), ("masked", [2, 3, 197]), ("normal", [7, 45])]
    outputs += [("logs", [3, 4, 77]), ("below", [3, 4, 77])]
    constants = [("mask", mask), ("g", weights(45)), ("b", weights(45))]
    return save(path, nodes, inputs, outputs, constants, opset=17)
