"""PyTorch's Inductor, on the model as onnx2torch reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

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
        module = onnx2torch.convert(str(subject.model)).eval()
        compiled = torch.compile(module, mode=None if setting == "default" else setting)

        def run(feed: Mapping[str, Array]) -> list[Array]:
            arrays = [torch.from_numpy(feed[spec.name]) for spec in subject.inputs]
            with torch.no_grad():
                found = compiled(*arrays)
            results = found if isinstance(found, tuple | list) else [found]
            return [result.numpy() for result in results]

        return run
