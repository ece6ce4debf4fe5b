"""TVM's tensor intrinsics without the twelve seconds.

`import tvm.s_tir.tensor_intrin` registers the intrinsics of every target, and inspects the whole
call stack twice for each (88 % of the 12-27 s). `TuneContext` imports that package on every
construction. So the package is put in place here without its `__init__`, and only the submodules
that a rule can use are imported: 0.05-0.3 s for x86, 2 s for tensor cores, which are therefore for
whoever makes a sketch for them, or replays one.

`tests/search/test_intrinsics.py` fails when an upgrade of TVM changes what this rests on.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

from tunefarm.search.kernels.tensor_cores import TENSOR_CORES, register_bfloat16

_PACKAGE = "tvm.s_tir.tensor_intrin"
_SUBMODULES = {"llvm": {"x86_64": ("x86",), "aarch64": ("arm_cpu",)}, TENSOR_CORES: {"": ("cuda",)}}


def register_intrinsics(rules: str, machine: str = "x86_64") -> tuple[str, ...]:
    """Register the intrinsics of a target kind's rules (and CPU architecture), or of those for
    tensor cores; the submodules imported. Rules for a GPU's plain cores use none.

    Call this before the first `TuneContext`. Calling it again adds what is missing.
    """
    import tvm.s_tir

    if _PACKAGE not in sys.modules:
        spec = importlib.util.find_spec("tvm.s_tir")
        assert spec is not None
        assert spec.submodule_search_locations
        package = types.ModuleType(_PACKAGE)
        package.__path__ = [f"{spec.submodule_search_locations[0]}/tensor_intrin"]
        sys.modules[_PACKAGE] = package
        tvm.s_tir.tensor_intrin = package
    families = _SUBMODULES.get(rules, {})
    names = families.get(machine, families.get("", ()))
    with without_stack():
        for name in names:
            importlib.import_module(f"{_PACKAGE}.{name}")
        if "cuda" in names:
            register_bfloat16()
    return names


@contextlib.contextmanager
def without_stack() -> Iterator[None]:
    """Spare the parser its looks at the call stack: they tell whether a function is in a class,
    which no intrinsic is. CUDA's ones are a hundred: 2 s instead of 9, also where a rule of TVM's
    imports them."""
    from tvm.tirx.script.parser import entry

    kept = entry.inspect
    entry.inspect = _Inspect(kept)
    try:
        yield
    finally:
        entry.inspect = kept


class _Inspect:
    """The module `inspect`, with an empty stack."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def stack(self) -> list[Any]:
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
