"""What a machine with nothing but Python and NumPy needs to run a bundle: some 7 MB, packed."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tunefarm.devices.cuda_runtime import cuda_library

_COMPILER = "libtvm_compiler.so"
_FOR_DEVELOPERS = ("3rdparty", "testing", "tests", "src", "include")
_PACKAGES = ("tvm", "tvm_ffi", "psutil", "ml_dtypes")
_MODULES = ("typing_extensions",)
_ROOMS = ("devices", "measure")
_OURS = ("__init__.py", "durations.py", "errors.py", "home.py", "process.py")
_OURS_FRONTEND = ("__init__.py", "dtypes.py", "program.py")
_COMPILED = ("tvm_ffi/core.", "ml_dtypes/_ml_dtypes_ext.")
"""What is compiled for one Python."""


def runtime_files(wheels: Path | None = None, for_gpu: bool = False) -> dict[str, Path]:
    """Files by their path below the runtime's directory, and the bundle's ``__main__.py``.

    Args:
        wheels: a directory with wheels of apache-tvm-ffi, and for bfloat16 of ml_dtypes, for other
            Pythons than this one; what they have that is compiled for theirs goes in as well.
        for_gpu: CUDA's runtime library as well, where it is found.
    """
    found = {"__main__.py": _home("tunefarm.measure.bundles") / "main.py"}
    for name in _PACKAGES:
        home = _home(name)
        found.update({f"{name}/{one.relative_to(home).as_posix()}": one for one in _of(home)})
    for name in _MODULES:
        found[f"{name}.py"] = _file(name)
    ours = _home("tunefarm")
    for name in _OURS:
        found[f"tunefarm/{name}"] = ours / name
    for name in _OURS_FRONTEND:
        found[f"tunefarm/frontend/{name}"] = ours / "frontend" / name
    for room in _ROOMS:
        for one in sorted((ours / room).rglob("*.py")):
            if "emulator" not in one.parts:  # a GPU of paper is what they are to be without
                found[f"tunefarm/{one.relative_to(ours).as_posix()}"] = one
    for wheel in sorted(wheels.glob("*.whl")) if wheels is not None else ():
        found.update(_cores(wheel))
    if for_gpu and (library := cuda_library()) is not None:
        found[f"tvm/lib/{library.name}"] = library
    return found


def _cores(wheel: Path) -> Iterator[tuple[str, Path]]:
    """Of a wheel: the part that is compiled for one Python."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(_COMPILED) and name.endswith(".so"):
                yield name, Path(archive.extract(name, wheel.with_suffix(".unpacked")))


def _of(home: Path) -> Iterator[Path]:
    """A package's Python and its libraries, without the compiler and what is for developers."""
    for one in sorted(home.rglob("*")):
        parts = one.relative_to(home).parts
        if one.name == _COMPILER or parts[0] in _FOR_DEVELOPERS:
            continue
        if one.suffix in (".py", ".so") or ".so." in one.name:
            yield one


def _home(package: str) -> Path:
    return _file(package).parent


def _file(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None, f"{module} is no package of this environment"
    return Path(spec.origin)
