"""IREE: compiled ahead of time for this processor, run by its local task system."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from tunefarm.results.runtimes.contract import Array, Run, Runtime, Subject

COMPILE_LIMIT_S = 1800.0
OPSET = "17"
"""The importer takes no old ones."""


def _tool(name: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"iree.compiler.tools.{name}", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=COMPILE_LIMIT_S,
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        wrong = [line for line in lines if "error" in line.lower()] or lines[-1:] or ["no reason"]
        raise RuntimeError(f"{name}: {wrong[0]}")


class Iree(Runtime):
    name: ClassVar[str] = "iree"
    needs: ClassVar[Mapping[str, str]] = {
        "iree.compiler": "iree-base-compiler",
        "iree.runtime": "iree-base-runtime",
    }
    settings: ClassVar[tuple[str, ...]] = ("O3",)

    def prepare(self, subject: Subject, setting: str) -> None:
        text, built = subject.directory / "model.mlir", subject.directory / "model.vmfb"
        _tool("import_onnx", str(subject.model), "--opset-version", OPSET, "-o", str(text))
        _tool(
            "scripts.iree_compile",
            str(text),
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=host",
            f"--iree-opt-level={setting}",
            "-o",
            str(built),
        )

    def load(self, subject: Subject, setting: str) -> Run:
        import iree.runtime as iree

        iree.flags.parse_flags(f"--task_topology_max_group_count={subject.threads}")
        config = iree.Config("local-task")
        context = iree.SystemContext(config=config)
        library = subject.directory / "model.vmfb"
        context.add_vm_module(iree.VmModule.mmap(context.instance, str(library)))
        names = context.modules.module.vm_module.function_names
        (name,) = [n for n in names if "$" not in n and not n.startswith("__")]
        function = context.modules.module[name]

        def run(feed: Mapping[str, Array]) -> list[Array]:
            found = function(*(feed[spec.name] for spec in subject.inputs))
            results = found if isinstance(found, tuple | list) else [found]
            return [np.asarray(result.to_host()) for result in results]

        return run
