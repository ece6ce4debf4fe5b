"""The kernels of the benchmark: one ONNX model each, so that every runtime gets the same thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tunefarm.devices.target import Target
from tunefarm.frontend.importer import ImportRequest, import_model
from tunefarm.frontend.program import Program, TuningTask

IN_MODEL_BYTES = 100 << 20
"""What a model reads between two uses of a kernel that is given alone: ResNet-50's weights."""


@dataclass(frozen=True)
class Kernel:
    """One workload.

    Attributes:
        bound: what limits it on a CPU: "peak" (dense contractions), "bandwidth", or "" where
            neither says much (short of reuse, or of work).
        why: where such a kernel occurs.
    """

    name: str
    bound: str
    why: str
    make: Callable[[], onnx.ModelProto]


def _model(
    nodes: list[Any],
    inputs: dict[str, tuple[int, ...]],
    constants: dict[str, np.ndarray[Any, Any]],
    output: tuple[int, ...],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "kernel",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _weights(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(0, 0.1, shape).astype(np.float32)


def matmul(left: tuple[int, ...], right: tuple[int, ...]) -> Callable[[], onnx.ModelProto]:
    """Both operands are inputs: whatever is repacked is repacked in the timed call."""
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
    return lambda: _model(nodes, {"a": left, "b": right}, {}, (*left[:-1], right[-1]))


def dense(batch: int, inputs: int, outputs: int) -> Callable[[], onnx.ModelProto]:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["d"], transB=1),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    return lambda: _model(
        nodes,
        {"x": (batch, inputs)},
        {"w": _weights(outputs, inputs), "b": _weights(outputs)},
        (batch, outputs),
    )


def conv(
    size: int, channels: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> Callable[[], onnx.ModelProto]:
    """With bias and ReLU, padded to keep its size."""
    nodes = [
        helper.make_node(
            "Conv",
            ["x", "w", "b"],
            ["c"],
            pads=[kernel // 2] * 4,
            strides=[stride] * 2,
            group=groups,
        ),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    result = (size + 2 * (kernel // 2) - kernel) // stride + 1
    return lambda: _model(
        nodes,
        {"x": (1, channels, size, size)},
        {"w": _weights(outputs, channels // groups, kernel, kernel), "b": _weights(outputs)},
        (1, outputs, result, result),
    )


def pool(size: int, channels: int) -> Callable[[], onnx.ModelProto]:
    nodes = [
        helper.make_node(
            "MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]
        )
    ]
    return lambda: _model(
        nodes, {"x": (1, channels, size, size)}, {}, (1, channels, size // 2, size // 2)
    )


def softmax(*shape: int) -> Callable[[], onnx.ModelProto]:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=-1)]
    return lambda: _model(nodes, {"x": shape}, {}, shape)


def layer_norm(*shape: int) -> Callable[[], onnx.ModelProto]:
    nodes = [helper.make_node("LayerNormalization", ["x", "g", "b"], ["y"], axis=-1)]
    constants = {"g": _weights(shape[-1]), "b": _weights(shape[-1])}
    return lambda: _model(nodes, {"x": shape}, constants, shape)


def add_relu(*shape: int) -> Callable[[], onnx.ModelProto]:
    nodes = [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    return lambda: _model(nodes, {"a": shape, "b": shape}, {}, shape)


KERNELS = (
    Kernel("matmul-512", "peak", "square", matmul((512, 512), (512, 512))),
    Kernel("matmul-1024", "peak", "square", matmul((1024, 1024), (1024, 1024))),
    Kernel("matmul-tall", "peak", "4096x64 by 64x256", matmul((4096, 64), (64, 256))),
    Kernel("matmul-odd", "", "509x511 by 511x500", matmul((509, 511), (511, 500))),
    Kernel("dense-8", "", "a classifier's last layer, batch 8", dense(8, 1024, 1000)),
    Kernel("conv1x1", "peak", "ResNet-50, 56x56, 64 to 256", conv(56, 64, 256, 1)),
    Kernel("conv3x3", "peak", "ResNet-50, 56x56, 64 to 64", conv(56, 64, 64, 3)),
    Kernel("conv3x3-late", "peak", "ResNet-50, 7x7, 512 to 512", conv(7, 512, 512, 3)),
    Kernel("conv3x3-stride", "peak", "ResNet-50, 56x56, 128 to 128", conv(56, 128, 128, 3, 2)),
    Kernel("conv7x7-stride", "", "ResNet-50's first, 3 to 64", conv(224, 3, 64, 7, 2)),
    Kernel("depthwise", "", "MobileNet v2, 56x56, 144", conv(56, 144, 144, 3, 1, 144)),
    Kernel("grouped", "", "ResNeXt-50, 56x56, 128 in 32 groups", conv(56, 128, 128, 3, 1, 32)),
    Kernel("attention", "", "BERT's scores, 12 heads", matmul((12, 128, 64), (12, 64, 128))),
    Kernel("softmax", "bandwidth", "8192x1024", softmax(8192, 1024)),
    Kernel("layer-norm", "bandwidth", "8192x1024", layer_norm(8192, 1024)),
    Kernel("max-pool", "bandwidth", "ResNet-50's, 112x112, 64", pool(112, 64)),
    Kernel("add-relu", "bandwidth", "8192x1024", add_relu(8192, 1024)),
)


def imported(kernel: Kernel, directory: Path, target: Target) -> tuple[Program, TuningTask]:
    """The kernel as a job would see it: its heaviest task (layout changes at the ends are others).

    The model is left in `directory` for the other runtimes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{kernel.name}.onnx"
    onnx.save(kernel.make(), path)
    program = import_model(ImportRequest(path, directory / "program", target))
    heaviest = max(program.tasks, key=lambda task: (task.flops, task.bytes))
    return program, heaviest


def between_bytes(program: Program) -> int:
    """What is read between two uses of a kernel: in `program`, or in the model that one which is
    alone there stands for."""
    return max(program.between_bytes, IN_MODEL_BYTES if len(program.tasks) == 1 else 0)
