"""Reading an ONNX file that nobody vouches for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tunefarm.errors import InvalidModel, UnsupportedModel, UsageError
from tunefarm.frontend.onnx.passes import graphs_of
from tunefarm.frontend.program import TensorSpec


@dataclass(frozen=True)
class ImportLimits:
    """What an import may cost: a model that would cost more is refused.

    Attributes:
        nodes: graph nodes.
        elements: of any one tensor of the graph.
        model_bytes: of the file and its external data.
        memory_bytes: growth of the importing process.
        seconds: wall time of the import.
    """

    nodes: int = 50_000
    elements: int = 2**31
    model_bytes: int = 8 * 2**30
    memory_bytes: int = 16 * 2**30
    seconds: float = 900.0


def read_model(path: Path, limits: ImportLimits) -> onnx.ModelProto:
    """The model with its external data, checked.

    Raises:
        InvalidModel: missing, empty, truncated, not ONNX, over the limits, or external data gone.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise InvalidModel(f"{path} is not a file")
        if size == 0:
            raise InvalidModel(f"{path} is empty")
        if size > limits.model_bytes:
            raise InvalidModel(f"{path} has {size} bytes; at most {limits.model_bytes} are read")
        data = path.read_bytes()
    except FileNotFoundError:
        raise InvalidModel(f"there is no file {path}") from None
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error.strerror}") from None
    try:
        model = onnx.load_model_from_string(data)
    except Exception:
        raise InvalidModel(
            f"{path} is not an ONNX model, or is cut short ({size} bytes)",
            hint="Check the download, or export the model again.",
        ) from None
    if not model.graph.node or not model.opset_import:
        raise InvalidModel(f"{path} holds no ONNX graph", hint="Export the model again.")
    if len(model.graph.node) > limits.nodes:
        raise InvalidModel(f"{path} has {len(model.graph.node)} nodes; at most {limits.nodes}")
    _load_external(model, path, limits)
    _check_sizes(model, path, limits)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        reason = str(error).strip().splitlines()[0]
        if "No Op registered" in reason or "No opset import" in reason:
            raise UnsupportedModel(f"{path}: {reason}") from None
        raise InvalidModel(f"{path} is not a valid ONNX model: {reason}") from None
    except ValueError:
        pass  # over protobuf's 2 GiB: the checker cannot take it in memory
    return model


def _load_external(model: onnx.ModelProto, path: Path, limits: ImportLimits) -> None:
    total = 0
    for tensor in _tensors(model.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        file = path.parent / location
        if not file.is_file():
            raise InvalidModel(
                f"{path}: the external data of {tensor.name!r}, {location!r}, is missing",
                hint=f"Put {location} beside the model, or export with the weights inside.",
            )
        total += int(entries.get("length", file.stat().st_size))
        if total > limits.model_bytes:
            raise InvalidModel(f"{path}: more than {limits.model_bytes} bytes of external data")
    if total:
        try:
            onnx.load_external_data_for_model(model, str(path.parent))
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise InvalidModel(f"{path}: its external data is refused: {reason}") from None


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """All that a file may keep beside itself, of graphs inside as well."""
    yield from graph.initializer
    for node in graph.node:
        for one in node.attribute:
            if one.HasField("t"):
                yield one.t
            yield from one.tensors
        for inner in graphs_of(node):
            yield from _tensors(inner)


def _check_sizes(model: onnx.ModelProto, path: Path, limits: ImportLimits) -> None:
    def check(name: str, dims: list[int], what: str) -> None:
        elements = math.prod(max(int(d), 1) for d in dims)
        if any(int(d) < 0 for d in dims) or elements > limits.elements:
            raise InvalidModel(
                f"{path}: {what} {name!r} of shape {[int(d) for d in dims]} has more than "
                f"{limits.elements} elements, or a negative one"
            )

    constants = {i.name: i for i in model.graph.initializer}
    for tensor in constants.values():
        check(tensor.name, list(tensor.dims), "constant")
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        check(value.name, [d.dim_value for d in dims if d.HasField("dim_value")], "input")
    for node in model.graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    check(node.output[0], list(attribute.t.dims), "constant")
                    constants[node.output[0]] = attribute.t
        if node.op_type in ("ConstantOfShape", "Expand") and node.input[-1] in constants:
            dims = numpy_helper.to_array(constants[node.input[-1]]).astype(np.int64).tolist()
            check(node.output[0], list(dims), f"the result of {node.op_type}")


def bind_shapes(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]) -> None:
    """Give the model's inputs the shapes wished for.

    Raises:
        UsageError: a name that is no input, or another rank than the input's.
        UnsupportedModel: an input keeps a dimension without a size.
    """
    inputs = {value.name: value for value in _true_inputs(model)}
    for name, shape in shapes.items():
        if name not in inputs:
            raise UsageError(
                f"--shape {name}: the model has no such input; it has {', '.join(inputs)}"
            )
        dims = inputs[name].type.tensor_type.shape.dim
        if len(dims) != len(shape):
            raise UsageError(f"--shape {name}: {len(shape)} dimensions given, {len(dims)} needed")
        for dim, size in zip(dims, shape, strict=True):
            dim.dim_value = size
    if shapes:  # what the file says of other values' sizes was said of other inputs
        del model.graph.value_info[:]
        for output in model.graph.output:
            for dim in output.type.tensor_type.shape.dim:
                dim.Clear()
    for name, value in inputs.items():
        dims = value.type.tensor_type.shape.dim
        names = [d.dim_param or "?" for d in dims if not d.HasField("dim_value")]
        if names:
            example = ",".join(str(d.dim_value or 1) for d in dims)
            raise UnsupportedModel(
                f"input {name!r} has dimensions without a size ({', '.join(names)})",
                hint=f"Fix them: --shape {name}={example}",
            )


def _true_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    constants = {i.name for i in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def input_specs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    return tuple(_spec(value) for value in _true_inputs(model))


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    return TensorSpec(value.name, tuple(d.dim_value for d in tensor.shape.dim), dtype)


def name_plainly(model: onnx.ModelProto) -> None:
    """Give inputs whose names are none in C names that are: the compiler for GPUs calls a kernel's
    arguments after them."""
    graph = model.graph
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    taken |= {one.name for one in (*graph.initializer, *graph.input, *graph.output)}
    plain: dict[str, str] = {}
    for one in _true_inputs(model):
        if re.fullmatch(r"[A-Za-z_]\w*", one.name, re.ASCII):
            continue
        name = "input_" + re.sub(r"\W", "_", one.name, flags=re.ASCII)
        while name in taken:
            name += "_"
        taken.add(name)
        plain[one.name] = one.name = name
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = plain.get(name, name)
    for output in graph.output:  # which may be an input as it came
        if output.name in plain:
            through = onnx.helper.make_node("Identity", [plain[output.name]], [output.name])
            graph.node.append(through)
