"""What a machine with nothing but Python and NumPy needs to run a bundle: some 7 MB, packed."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path

_COMPILER = "libtvm_compiler.so"
_FOR_DEVELOPERS = ("3rdparty", "testing", "tests", "src", "include")
_PACKAGES = ("tvm", "tvm_ffi", "psutil", "ml_dtypes")
_MODULES = ("typing_extensions",)
_ROOMS = ("devices", "measure")
_OURS = ("__init__.py", "errors.py", "home.py", "process.py")
_OURS_FRONTEND = ("__init__.py", "program.py")
_CUDA = "libcudart.so.*"


def runtime_files(wheels: Path | None = None) -> dict[str, Path]:
    """Files by their path below the runtime's directory, and the bundle's ``__main__.py``.

    Args:
        wheels: a directory with wheels of apache-tvm-ffi for other Pythons than this one; what they
            have that is compiled for theirs goes in as well.
    """
    found = {"__main__.py": _home("tunefarm.measure") / "bundle_main.py"}
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
        for one in sorted((ours / room).glob("*.py")):
            found[f"tunefarm/{room}/{one.name}"] = one
    for wheel in sorted(wheels.glob("*.whl")) if wheels is not None else ():
        found.update(_cores(wheel))
    if (runtime := _cuda_runtime()) is not None:
        found[f"tvm/lib/{runtime.name}"] = runtime
    return found


def _cores(wheel: Path) -> Iterator[tuple[str, Path]]:
    """Of a wheel of apache-tvm-ffi: the part that is compiled for one Python."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("tvm_ffi/core.") and name.endswith(".so"):
                yield name, Path(archive.extract(name, wheel.with_suffix(".unpacked")))


def _cuda_runtime() -> Path | None:
    """CUDA's own runtime library, which TVM's needs: NVIDIA's package has it, or a toolkit."""
    cuda = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in cuda.submodule_search_locations or ()] if cuda else []
    for root in (*roots, Path("/usr/local/cuda")):
        for one in sorted(root.glob(f"**/{_CUDA}")):
            return one
    return None


def _of(home: Path) -> Iterator[Path]:
    """A package's Python and its libraries, without the compiler and what is for developers."""
    for one in sorted(home.rglob("*")):
        parts = one.relative_to(home).parts
        if one.name == _COMPILER or parts[0] in (
            "3rdparty",
            "testing",
            "tests",
            "src",
            "include",
        ):
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
