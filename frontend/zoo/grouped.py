"""Networks of grouped convolutions, with seeded random weights.

Images are (1, 3, 224, 224), results (1, 1000), float32; normalisations are folded into the
convolutions, as exporters do.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from tunefarm.frontend.zoo.mobile import Convolutions


@dataclass(frozen=True)
class Stage:
    """Residual blocks: a 1x1 convolution to `wide` channels, a 3x3 one in groups of `group`
    channels, which the first block of a stage does in steps of `stride`, and a 1x1 one to
    `channels`."""

    blocks: int
    wide: int
    channels: int
    group: int
    stride: int


@dataclass(frozen=True)
class Network:
    """`stem` channels of a strided convolution with `taps` squared, pooled or not, and stages;
    `squeezes`: channels are scaled by what a quarter of a block's input makes of their means."""

    stem: int
    taps: int
    pooled: bool
    stages: tuple[Stage, ...]
    squeezes: bool


GROUPED = {
    "regnety_800mf": Network(
        *(32, 3, False),
        (
            *(Stage(1, 64, 64, 16, 2), Stage(3, 128, 128, 16, 2)),
            *(Stage(8, 320, 320, 16, 2), Stage(2, 768, 768, 16, 2)),
        ),
        True,
    ),
    "resnext50": Network(
        *(64, 7, True),
        (
            *(Stage(3, 128, 256, 4, 1), Stage(4, 256, 512, 8, 2)),
            *(Stage(6, 512, 1024, 16, 2), Stage(3, 1024, 2048, 32, 2)),
        ),
        False,
    ),
}
"""Radosavovic et al. 2020; Xie et al. 2017 (32 groups, of 4 channels at first)."""


def grouped(name: str, seed: int = 0) -> onnx.ModelProto:
    """The network `name` of `GROUPED`: input and output ``image`` and ``scores``."""
    network, convolutions = GROUPED[name], Convolutions(seed)
    writer = convolutions.writer
    x = convolutions.of("image", 3, network.stem, network.taps, 2)
    x, channels = writer.node("Relu", x), network.stem
    if network.pooled:
        x = writer.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage in network.stages:
        for number in range(stage.blocks):
            step = 1 if number else stage.stride
            x = _block(convolutions, x, channels, stage, step, network.squeezes)
            channels = stage.channels
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x), axis=1)
    scores = convolutions.dense(x, channels, 1000)
    image = ("image", (1, 3, 224, 224))
    return writer.model(name, image, ("scores", scores, (1, 1000)), opset=14)


def _block(
    convolutions: Convolutions, x: str, channels: int, stage: Stage, stride: int, squeezes: bool
) -> str:
    writer = convolutions.writer
    wide = writer.node("Relu", convolutions.of(x, channels, stage.wide, 1))
    groups = stage.wide // stage.group
    deep = writer.node("Relu", convolutions.of(wide, stage.wide, stage.wide, 3, stride, groups))
    if squeezes:
        deep = convolutions.scaled(deep, stage.wide, channels // 4, "Relu", "Sigmoid")
    out = convolutions.of(deep, stage.wide, stage.channels, 1, scale=0.3)
    if stride > 1 or channels != stage.channels:
        x = convolutions.of(x, channels, stage.channels, 1, stride)
    return writer.node("Relu", writer.node("Add", out, x))
