"""Importing the TVM runtime in a user's process, quickly."""

from __future__ import annotations

import os
import sys
from typing import Any


def import_runtime(threads: int) -> None:
    """TVM without its compiler, for at least as long as nobody else has imported it; with so many
    threads, unless the environment says otherwise."""
    if "tvm" in sys.modules:
        return
    os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")
    os.environ.setdefault("TVM_NUM_THREADS", str(threads))
    import tvm_ffi

    core = tvm_ffi.core
    plain = getattr(core, "_object_type_key_to_index", None)
    if plain is None:  # another version's
        import tvm

        return
    core._object_type_key_to_index = _Registered(plain)
    try:
        import tvm  # noqa: F401
    finally:
        core._object_type_key_to_index = plain


class _Registered:
    """The index of a type by its name, and None of one that no library has registered: without
    asking for that, which is an error inside.

    Importing TVM asks for a hundred that only the compiler has. For the first error of a process
    a library (libbacktrace) reads symbols and debug information of all that is loaded, to name
    the functions of C++ in a stack trace that nobody sees: 0.2 s of the 0.3 that the import takes.
    """

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self._known: set[str] = set()

    def __call__(self, name: str) -> int | None:
        if name not in self._known:
            from tvm_ffi.registry import get_registered_type_keys

            self._known.update(get_registered_type_keys())  # a library may have come since
        index: int | None = self._plain(name) if name in self._known else None
        return index
