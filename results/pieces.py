"""A large part of an artifact, read and checked by pieces, several at a time.

One digest of the whole goes through it byte after byte, on one core, and after all of it has been
read; pieces that have digests of their own are checked where they are, still in the cache, by as
many threads as there are cores for this process. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

PIECE = 8 << 20
"""Bytes of all pieces but the last."""
_CHUNK = 1 << 20
"""Bytes in memory of what is only looked at."""
_MOST_THREADS = 8
_LEAST = 1 << 12
"""Bytes of the smallest pieces that a manifest may have."""


def described(path: Path) -> dict[str, Any]:
    """A file for a manifest: its length, the digest of the whole, and those of its pieces."""
    with path.open("rb") as file:
        size, whole, pieces = digested(file, os.fstat(file.fileno()).st_size, PIECE)
    return {"bytes": size, "sha256": whole, "pieces": {"bytes": PIECE, "sha256": pieces}}


def digested(file: IO[bytes], limit: int, length: int) -> tuple[int, str, list[str]]:
    """Bytes of a file, as far as one beyond `limit`; the digest of these, and those of their pieces
    of `length`."""
    whole, piece, pieces, count = hashlib.sha256(), hashlib.sha256(), [], 0
    while part := file.read(min(_CHUNK, length - count % length, limit + 1 - count)):
        whole.update(part)
        piece.update(part)
        count += len(part)
        if count % length == 0:
            pieces.append(piece.hexdigest())
            piece = hashlib.sha256()
    if count % length:
        pieces.append(piece.hexdigest())
    return count, whole.hexdigest(), pieces


def listed(entry: Mapping[str, Any], size: int) -> tuple[int, list[str]] | None:
    """Length and digests of the pieces of a part of `size` bytes; None where its entry in the
    manifest has none, or none that make it up: then the digest of the whole is to be checked."""
    pieces = entry.get("pieces")
    if not isinstance(pieces, dict):
        return None
    length, digests = pieces.get("bytes"), pieces.get("sha256")
    if not isinstance(length, int) or length < _LEAST or not isinstance(digests, list):
        return None
    return (length, digests) if len(digests) == -(-size // length) else None


def read(descriptor: int, offset: int, memory: memoryview, length: int, digests: list[str]) -> bool:
    """Fill `memory` from `offset` of a file on; whether each piece of `length` bytes was there and
    has its digest.

    Raises:
        OSError: the file cannot be read.
    """
    todo, errors, sound = iter(range(len(digests))), [], [False] * len(digests)

    def work() -> None:
        try:
            for number in todo:
                piece = memory[number * length : (number + 1) * length]
                there = _fill(descriptor, offset + number * length, piece)
                sound[number] = there and hashlib.sha256(piece).hexdigest() == digests[number]
        except OSError as error:
            errors.append(error)

    count = min(len(digests), len(os.sched_getaffinity(0)), _MOST_THREADS)
    threads: list[threading.Thread] = []
    try:
        for _ in range(count - 1):
            thread = threading.Thread(target=work)
            thread.start()
            threads.append(thread)
    except RuntimeError:  # no more of them are to be had: then fewer
        pass
    try:
        work()
    finally:
        for _ in todo:  # interrupted: whoever has this file open may close it now
            pass
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return all(sound)


def _fill(descriptor: int, offset: int, piece: memoryview) -> bool:
    """Whether all of `piece` could be read."""
    done = 0
    while done < len(piece):
        count = os.preadv(descriptor, [piece[done:]], offset + done)
        if not count:
            return False
        done += count
    return True
