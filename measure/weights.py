"""A model's weights in a file beside its library: one copy in memory, in large pages.

Inside the library they would be in memory twice, as the library's own data and as what the runtime
makes of it, in pages of 4 KiB, past whose ends no processor prefetches.

The file: the length of a JSON header (8 bytes, little-endian), the header, and the tensors'
elements, each from a multiple of 64 bytes on, as kernels assume. The header lists shape, dtype and
offset of each, in the order in which the model takes them.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunefarm.frontend.dtypes import numpy_dtype
from tunefarm.home import atomically

Array = NDArray[Any]

ALIGNMENT = 64
_LENGTH = 8
_HUGE = 2 << 20


def beside(library: Path) -> Path:
    """Where the weights of a model's library lie; no such file where it has none."""
    return library.with_suffix(".weights")


def write(path: Path, arrays: Sequence[Array]) -> None:
    """Write `arrays` to `path`; a reader sees all of it or nothing."""
    rows: list[dict[str, Any]] = [
        {"shape": list(a.shape), "dtype": a.dtype.name, "offset": 0} for a in arrays
    ]
    offset = _aligned(_LENGTH + len(json.dumps(rows)) + 20 * len(rows))
    for row, array in zip(rows, arrays, strict=True):
        row["offset"] = offset
        offset = _aligned(offset + array.nbytes)
    header = json.dumps(rows).encode()
    with atomically(path) as file:
        file.write(len(header).to_bytes(_LENGTH, "little") + header)
        for row, array in zip(rows, arrays, strict=True):
            file.seek(row["offset"])
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        file.truncate(offset)


def room(size: int) -> memoryview:
    """`size` bytes of memory, in huge pages where the system gives them: they begin with one."""
    memory = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # not every system has them
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(memory, np.uint8).ctypes.data % _HUGE
    return memoryview(memory)[start : start + size]


def load(path: Path) -> list[Array]:
    """The weights in `path`.

    Raises:
        ValueError: it is no such file.
    """
    memory = room(path.stat().st_size)
    with path.open("rb") as file:
        file.readinto(memory)
    return arrays(memory)


def arrays(memory: memoryview) -> list[Array]:
    """The weights in the bytes of such a file, which they keep in memory.

    Raises:
        ValueError: the bytes are not such a file's.
    """
    length = int.from_bytes(memory[:_LENGTH], "little")
    try:
        rows = json.loads(bytes(memory[_LENGTH : _LENGTH + length]))
        return [_array(memory, row["shape"], row["dtype"], row["offset"]) for row in rows]
    except (TypeError, KeyError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a file of weights ({error})") from None


def _array(memory: memoryview, shape: list[int], dtype: str, offset: int) -> Array:
    kind, count = numpy_dtype(dtype), math.prod(shape)
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError(f"a tensor of shape {shape}")
    if offset % ALIGNMENT or offset < 0 or offset + count * kind.itemsize > len(memory):
        raise ValueError("a tensor lies outside of it")
    return np.frombuffer(memory, kind, count, offset).reshape(shape)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
