"""Importing the TVM runtime in a user's process, quickly."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence

_IMPORTING = threading.Lock()


def import_runtime(threads: int) -> None:
    """TVM without its compiler, unless somebody has imported that already; with so many threads,
    unless the environment says otherwise."""
    with _IMPORTING:
        if "tvm" in sys.modules:
            return
        os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")
        os.environ.setdefault("TVM_NUM_THREADS", str(threads))
        import tvm_ffi

        plain = getattr(tvm_ffi.core, "_object_type_key_to_index", None)
        registered = getattr(tvm_ffi.registry, "get_registered_type_keys", None)
        if plain is None or registered is None:  # another version's: as it is
            import tvm

            return
        tvm_ffi.core._object_type_key_to_index = _Registered(plain, registered)
        try:
            import tvm  # noqa: F401
        finally:
            tvm_ffi.core._object_type_key_to_index = plain


class _Registered:
    """The index of a type by its name, and None of one that no library has registered: without
    asking for that, which is an error inside.

    Importing TVM asks for a hundred that only the compiler has. For the first error of a process
    a library (libbacktrace) reads symbols and debug information of all that is loaded, to name
    the functions of C++ in a stack trace that nobody sees: 0.2 s of the 0.3 that the import takes.
    """

    def __init__(
        self, plain: Callable[[str], int | None], registered: Callable[[], Sequence[str]]
    ) -> None:
        self._plain = plain
        self._registered = registered
        self._known: set[str] = set()

    def __call__(self, name: str) -> int | None:
        if name not in self._known:
            self._known.update(self._registered())  # a library may have come since
        return self._plain(name) if name in self._known else None
