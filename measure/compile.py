"""What the builder's child does. Importing this module is the child's warm-up."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import tvm

from tunefarm.measure.build import BuildRequest, Library
from tunefarm.search import replay
from tunefarm.search.intrinsics import register_intrinsics
from tunefarm.search.plugins import load_plugins

register_intrinsics("llvm", platform.machine())
load_plugins()


class LinkError(Exception):
    """`ld` refused; its own words."""


def run_build(request: BuildRequest) -> Library:
    """Replay, lower, compile, link."""
    workload = replay.load_workload(request.workload)
    function = replay.scheduled_function(workload, request.target, request.trace)
    module, packed = replay.kernel_module(function)
    built = tvm.tirx.build(module, target=replay.tvm_target(request.target))
    _link(built, request.library)
    return Library(request.library, packed)


def _link(module: Any, library: Path) -> None:
    """One object, one `ld -shared`: gcc would take six times as long to the same bytes."""
    library.parent.mkdir(parents=True, exist_ok=True)
    stem = library.with_name(f".{library.stem}.{os.getpid()}")
    object_file, shared = stem.with_suffix(".o"), stem.with_suffix(".so")
    try:
        module.write_to_file(str(object_file))
        done = subprocess.run(
            ["ld", "-shared", "-o", str(shared), str(object_file)], capture_output=True, text=True
        )
        if done.returncode:
            raise LinkError(done.stderr.strip()[-300:] or f"ld: exit code {done.returncode}")
        os.replace(shared, library)
    finally:
        object_file.unlink(missing_ok=True)
        shared.unlink(missing_ok=True)
