"""CUDA's compiler as a program: it needs a C++ compiler beside it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tunefarm.measure.cuda.source import FLAGS, CudaError, first_errors


def version() -> str:
    """Of the `nvcc` on the path, such as ``13.0.88``; empty where there is none that runs."""
    if not shutil.which("nvcc"):
        return ""
    try:
        said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    found = re.search(r"\bV(\d+\.\d+\.\d+)", said.stdout)
    return found[1] if found and said.returncode == 0 else ""


def compiled(source: str, arch: str) -> tuple[bytes, bytes, str]:
    """Machine code for `arch`, the PTX in between, and the report.

    Raises:
        CudaError: `source` is refused.
    """
    number = arch.removeprefix("sm_")
    with tempfile.TemporaryDirectory() as directory:
        given, made = Path(directory) / "kernel.cu", Path(directory) / "kernel.cubin"
        given.write_text(source)
        command = ["nvcc", "--cubin", "-O3", f"-gencode=arch=compute_{number},code={arch}"]
        command += ["--keep", f"--keep-dir={directory}"]  # for the PTX in between
        command += [*FLAGS, "-Xptxas=-v", "-o", str(made), str(given)]
        # How long it may take is for whoever may end this process with all that it began.
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not made.exists():
            raise CudaError(first_errors(done.stderr) or f"nvcc: exit code {done.returncode}")
        between = made.with_suffix(".ptx")
        ptx = between.read_bytes() if between.exists() else b""
        return made.read_bytes(), ptx, done.stderr
