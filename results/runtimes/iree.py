"""IREE: compiled ahead of time for this processor, run by its local task system."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from tunefarm.results.runtimes.contract import Array, Run, Runtime, Subject

COMPILE_LIMIT_S = 1800.0


class Iree(Runtime):
    name: ClassVar[str] = "iree"
    needs: ClassVar[Mapping[str, str]] = {
        "iree.compiler": "iree-base-compiler",
        "iree.runtime": "iree-base-runtime",
    }

    def prepare(self, subject: Subject) -> None:
        text, built = subject.directory / "model.mlir", subject.directory / "model.vmfb"
        self._tool("import_onnx", str(subject.model), "-o", str(text))
        self._tool(
            "iree_compile",
            str(text),
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=host",
            "-o",
            str(built),
        )

    def _tool(self, name: str, *arguments: str) -> None:
        module = {
            "import_onnx": "iree.compiler.tools.import_onnx",
            "iree_compile": "iree.compiler.tools.scripts.iree_compile",
        }[name]
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=COMPILE_LIMIT_S,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            reason = next((line for line in lines if "error" in line.lower()), lines[-1:])
            raise RuntimeError(f"{name} failed: {reason}")

    def load(self, subject: Subject, setting: str) -> Run:
        import iree.runtime as iree

        iree.flags.parse_flags(f"--task_topology_max_group_count={subject.threads}")
        config = iree.Config("local-task")
        context = iree.SystemContext(config=config)
        library = subject.directory / "model.vmfb"
        context.add_vm_module(iree.VmModule.mmap(context.instance, str(library)))
        (name,) = [n for n in context.modules.module.vm_module.function_names if "$" not in n]
        function = context.modules.module[name]

        def run(feed: Mapping[str, Array]) -> list[Array]:
            found = function(*(feed[spec.name] for spec in subject.inputs))
            results = found if isinstance(found, tuple | list) else [found]
            return [np.asarray(result.to_host()) for result in results]

        return run
