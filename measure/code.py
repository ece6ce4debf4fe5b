"""Which code makes a kernel of a trace: a part of a candidate's identity, beside the compilers.

A trace says what is done to a kernel, and of kernels that are written whole no more than which
point they are (`search.replay`). What becomes of it is for this code to say, so what was measured
of another one's kernels says nothing of this one's.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

CODE = "code-"
"""What it begins with in a toolchain's words."""
_ROOT = Path(__file__).parents[1]
_COMPILING = ("compile", "cpu_passes", "lowering")
_FOR_GPUS = ("cubin", "compiler", "source", "passes", "nvcc", "nvrtc")
"""Of ``measure/cuda``."""
_PROPOSING = ("proposer", "space", "strategy")
"""Of the search, with all strategies, what draws points and orders them; everything else of it
writes kernels."""


def code_of(kind: str) -> str:
    """Of kernels for targets of that kind, in eight digits.

    Design spaces of processors leave all that they do in the trace; those of GPUs write whole
    kernels.
    """
    return _digest(tuple(_files(for_gpus=kind == "cuda")))


@cache
def whole_code() -> str:
    """Of all of tunefarm, and of the versions of TVM and its foreign functions, in as many digits.
    What else kernels are made with, compilers and linkers, is not in it."""
    rooms = [one for one in _ROOT.iterdir() if one.is_dir()]
    found = [*_ROOT.glob("*.py"), *(one for room in rooms for one in room.rglob("*.py"))]
    files = sorted(one for one in found if not one.name.startswith("."))  # an editor's
    whole = " ".join([_digest(tuple(files)), *map(version, ("apache-tvm", "apache-tvm-ffi"))])
    return hashlib.sha256(whole.encode()).hexdigest()[:8]


def _files(for_gpus: bool) -> list[Path]:
    search = _ROOT / "search"
    found = [one for one in search.glob("*.py") if one.stem not in _PROPOSING]
    found += search.glob("kernels/*.py")
    found += search.glob("spaces/**/*.py") if for_gpus else [search / "spaces" / "form.py"]
    measure = _ROOT / "measure"
    found += [measure / f"{name}.py" for name in _COMPILING]
    found += [measure / "cuda" / f"{name}.py" for name in (_FOR_GPUS if for_gpus else ())]
    return sorted(found)


@cache
def _digest(files: tuple[Path, ...]) -> str:
    whole = hashlib.sha256()
    for one in files:
        whole.update(f"{one.relative_to(_ROOT).as_posix()}\0".encode())
        whole.update(one.read_bytes())
    return whole.hexdigest()[:8]
