"""PyTorch's Inductor, on the model as onnx2torch reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tunefarm.results.runtimes.contract import Array, Run, Runtime, Subject


class Inductor(Runtime):
    """Frozen weights; compiled once, then taken from its cache."""

    name: ClassVar[str] = "inductor"
    needs: ClassVar[Mapping[str, str]] = {"torch": "torch", "onnx2torch": "onnx2torch"}
    settings: ClassVar[tuple[str, ...]] = ("default", "max-autotune")

    def prepare(self, subject: Subject, setting: str) -> None:
        import numpy as np

        feed = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in subject.inputs}
        self.load(subject, setting)(feed)

    def load(self, subject: Subject, setting: str) -> Run:
        import os

        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(subject.directory / "cache")
        import onnx2torch
        import torch
        from torch._inductor import config

        torch.set_num_threads(subject.threads)
        config.freezing = True
        config.fx_graph_cache = True
        module = fixed_shapes(onnx2torch.convert(without_dropout(subject.model)).eval())
        compiled = torch.compile(module, mode=None if setting == "default" else setting)

        def run(feed: Mapping[str, Array]) -> list[Array]:
            arrays = [torch.from_numpy(feed[spec.name]) for spec in subject.inputs]
            with torch.no_grad():
                found = compiled(*arrays)
            results = found if isinstance(found, tuple | list) else [found]
            return [result.numpy() for result in results]

        return run


def without_dropout(path: Path) -> Any:
    """The model at `path` without its dropouts, which do nothing in inference: onnx2torch does not
    know those of old models."""
    import onnx

    model = onnx.load(path)
    kept: list[Any] = []
    instead: dict[str, str] = {}
    for node in model.graph.node:
        node.input[:] = [instead.get(name, name) for name in node.input]
        if node.op_type == "Dropout":
            instead[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    for output in model.graph.output:  # an output keeps its name
        if output.name in instead:
            kept.append(onnx.helper.make_node("Identity", [instead[output.name]], [output.name]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def fixed_shapes(module: Any) -> Any:
    """The graph with its constant shapes as numbers: onnx2torch makes a `torch.Size` of a tensor at
    each call, which the tracing compiler cannot follow.

    Args:
        module: `torch.fx.GraphModule`; changed, and returned.
    """
    import torch

    for node in list(module.graph.nodes):
        if node.op != "call_module" or type(module.get_submodule(node.target)).__name__ != (
            "OnnxReshape"
        ):
            continue
        data, shape = node.args
        if shape.op != "get_attr":
            continue
        owner, _, name = shape.target.rpartition(".")
        sizes = [int(size) for size in getattr(module.get_submodule(owner), name)]
        if 0 in sizes:  # as in what is reshaped: known at a call only
            continue
        with module.graph.inserting_before(node):
            fixed = module.graph.call_function(torch.reshape, (data, sizes))
        node.replace_all_uses_with(fixed)
        module.graph.erase_node(node)
    module.recompile()
    return module
