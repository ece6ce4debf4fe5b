"""Convolutional networks for small devices, with seeded random weights: depthwise convolutions,
bounded and smooth activations and scaled channels, as in networks that people deploy.

Images are (1, 3, 224, 224), results (1, 1000), float32; normalisations are folded into the
convolutions, as exporters do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from tunefarm.frontend.onnx.writer import Writer


@dataclass(frozen=True)
class Block:
    """An inverted residual block: a 1x1 convolution to `wide` channels, a depthwise one of `taps`
    squared, the channels scaled by what `squeezed` ones make of their means (0: not), and a 1x1
    convolution to `channels`."""

    taps: int
    wide: int
    channels: int
    squeezed: int
    activation: str
    stride: int


@dataclass(frozen=True)
class Network:
    """`stem` channels of a strided 3x3 convolution, blocks, `head` channels of a 1x1 one, and, once
    they are averaged, a dense layer of `hidden` units (0: none) before the last."""

    stem: int
    blocks: tuple[Block, ...]
    head: int
    hidden: int
    activation: str
    gate: str


def _repeated(
    stem: int, stages: tuple[tuple[int, int, int, int, int], ...], activation: str, squeezes: bool
) -> tuple[Block, ...]:
    """Blocks of stages of (times wider, channels, blocks, stride, taps); the squeezed channels are
    a quarter of a block's input."""
    blocks, channels = [], stem
    for wider, out, count, stride, taps in stages:
        for number in range(count):
            squeezed = channels // 4 if squeezes else 0
            step = 1 if number else stride
            blocks.append(Block(taps, channels * wider, out, squeezed, activation, step))
            channels = out
    return tuple(blocks)


_V2 = (
    *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3)),
    *((6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3)),
)
_B0 = (
    *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
    *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
)
_V3 = (
    *((3, 16, 16, 0, "Relu", 1), (3, 64, 24, 0, "Relu", 2), (3, 72, 24, 0, "Relu", 1)),
    *((5, 72, 40, 24, "Relu", 2), (5, 120, 40, 32, "Relu", 1), (5, 120, 40, 32, "Relu", 1)),
    *((3, 240, 80, 0, "HardSwish", 2), (3, 200, 80, 0, "HardSwish", 1)),
    *((3, 184, 80, 0, "HardSwish", 1), (3, 184, 80, 0, "HardSwish", 1)),
    *((3, 480, 112, 120, "HardSwish", 1), (3, 672, 112, 168, "HardSwish", 1)),
    *((5, 672, 160, 168, "HardSwish", 2), (5, 960, 160, 240, "HardSwish", 1)),
    (5, 960, 160, 240, "HardSwish", 1),
)

NETWORKS = {
    "mobilenet_v2": Network(32, _repeated(32, _V2, "Relu6", False), 1280, 0, "Relu6", ""),
    "mobilenet_v3": Network(
        16, tuple(Block(*sizes) for sizes in _V3), 960, 1280, "HardSwish", "HardSigmoid"
    ),
    "efficientnet_b0": Network(32, _repeated(32, _B0, "Silu", True), 1280, 0, "Silu", "Sigmoid"),
}
"""Sandler et al. 2018; Howard et al. 2019 (the large one); Tan and Le 2019."""


def mobile(name: str, seed: int = 0) -> onnx.ModelProto:
    """The network `name` of `NETWORKS`: input and output ``image`` and ``scores``."""
    network, convolutions = NETWORKS[name], Convolutions(seed)
    writer = convolutions.writer
    x = convolutions.of("image", 3, network.stem, 3, 2)
    x, channels = convolutions.activated(x, network.activation), network.stem
    for block in network.blocks:
        x = convolutions.block(x, channels, block, network.gate)
        channels = block.channels
    x = convolutions.of(x, channels, network.head, 1)
    x = convolutions.activated(x, network.activation)
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x), axis=1)
    units = network.head
    if network.hidden:
        x = convolutions.activated(convolutions.dense(x, units, network.hidden), "HardSwish")
        units = network.hidden
    scores = convolutions.dense(x, units, 1000)
    image = ("image", (1, 3, 224, 224))
    return writer.model(name, image, ("scores", scores, (1, 1000)), opset=14)


class Convolutions:
    """Parts of such networks; each returns its result's name."""

    def __init__(self, seed: int) -> None:
        self.writer = Writer(seed)

    def block(self, x: str, channels: int, block: Block, gate: str) -> str:
        wide = x
        if block.wide != channels:
            wide = self.activated(self.of(x, channels, block.wide, 1), block.activation)
        deep = self.of(wide, block.wide, block.wide, block.taps, block.stride, block.wide)
        deep = self.activated(deep, block.activation)
        if block.squeezed:
            inner = "Relu" if gate == "HardSigmoid" else block.activation
            deep = self.scaled(deep, block.wide, block.squeezed, inner, gate)
        out = self.of(deep, block.wide, block.channels, 1)
        same = block.stride == 1 and block.channels == channels
        return self.writer.node("Add", out, x) if same else out

    def scaled(self, x: str, channels: int, squeezed: int, inner: str, gate: str) -> str:
        """Its channels times what as many of their means as `squeezed` say of each."""
        means = self.writer.node("GlobalAveragePool", x)
        few = self.activated(self.of(means, channels, squeezed, 1), inner)
        scales = self.of(few, squeezed, channels, 1)
        slope = {"alpha": 1 / 6} if gate == "HardSigmoid" else {}
        return self.writer.node("Mul", x, self.writer.node(gate, scales, **slope))

    def of(
        self,
        x: str,
        channels: int,
        filters: int,
        taps: int,
        stride: int = 1,
        groups: int = 1,
        scale: float = 1.0,
    ) -> str:
        """A convolution with a bias, padded to keep the image's size, or to halve it; its weights
        so large that a rectifier keeps the size of numbers, times `scale`."""
        terms = channels // groups * taps * taps
        weights = self.writer.normal(filters, channels // groups, taps, taps)
        weights = weights * (scale * np.sqrt(2 / terms))
        return self.writer.node(
            "Conv",
            *(x, self.writer.constant(weights), self._bias(filters)),
            pads=[taps // 2] * 4,
            strides=[stride] * 2,
            group=groups,
        )

    def dense(self, x: str, units: int, results: int) -> str:
        weights = self.writer.normal(units, results) / np.sqrt(units)
        return self.writer.node("Gemm", x, self.writer.constant(weights), self._bias(results))

    def _bias(self, size: int) -> str:
        return self.writer.constant(0.02 * self.writer.normal(size))

    def activated(self, x: str, kind: str) -> str:
        if kind == "Relu6":
            return self.writer.node("Clip", x, self.writer.constant(0.0), self.writer.constant(6.0))
        if kind == "Silu":
            return self.writer.node("Mul", x, self.writer.node("Sigmoid", x))
        return self.writer.node(kind, x)
