"""The facts in a damaged SQLite file.

Its tables may be beyond SQLite's own reading: a page that says where others are can be the broken
one. Facts are found without it: every page that looks like a leaf of a table is read for itself, in
the file and in its write-ahead log, and a record is a fact where its checksum agrees (which names
the table too). What does not agree stays where it is, in the file that was set aside.

The format is the one that SQLite publishes as "Database File Format", sections 1 and 2.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tunefarm.results import schema
from tunefarm.results.store import Store

HEADER, LEAF = 100, 0x0D
"""Bytes before the first page's content; the first byte of a leaf of a table."""
LOG_HEADER, FRAME_HEADER = 32, 24
SUFFIXES = ("", "-wal", "-shm")
LONGEST = 64 << 20
"""Bytes of a record: a length beyond that is damage."""


@dataclass(frozen=True)
class Mended:
    """`aside` is where the damaged file is now; facts found in it, by table."""

    aside: Path
    kept: Mapping[str, int]

    def words(self) -> str:
        facts = sum(self.kept.values())
        return (
            f"the journal was damaged: {facts} facts are sound and go on; the damaged file is "
            f"{self.aside}"
        )


def mend(path: Path) -> Mended:
    """Put a new journal with all facts that can be read in the place of the one at `path`, which is
    kept beside it. A crash in between leaves the old one.

    Raises:
        ValueError: nothing in it is a fact; it is left as it is.
    """
    fresh = path.with_name(f"{path.name}.mending")
    for suffix in SUFFIXES:
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
    store = Store(f"sqlite:///{fresh}")
    try:
        with store.together():
            for table, row in facts_in(path):
                store.add(table, [row])
        kept = facts_of(store)
    finally:
        store.close()
    if not any(kept.values()):
        fresh.unlink()
        raise ValueError(f"no fact in {path}")
    os.replace(fresh, _mended(path))
    return Mended(put_in_place(path), kept)


def facts_of(store: Store) -> dict[str, int]:
    """How many there are, by table."""
    count = sa.func.count()
    return {
        table.name: int(store.scalar(sa.select(count).select_from(table)))
        for table in fact_tables()
    }


def is_half_mended(path: Path) -> bool:
    """Whether a mended journal waits to be put in place: whoever made it has died."""
    return _mended(path).exists()


def put_in_place(path: Path) -> Path:
    """Put the mended journal where the damaged one is; where that one is now. Repeating it goes on
    where it stood."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(_mended(path).stat().st_mtime))
    aside = path.with_name(f"{path.stem}.damaged-{stamp}{path.suffix}")
    number = 1
    while aside.exists() and not (path.exists() and aside.samefile(path)):
        number += 1
        aside = aside.with_name(f"{path.stem}.damaged-{stamp}-{number}{path.suffix}")
    # The log first: beside a new file an old log would be taken for its own.
    for suffix in ("-shm", "-wal"):
        old = path.with_name(path.name + suffix)
        if old.exists():
            os.replace(old, aside.with_name(aside.name + suffix))
    if not aside.exists():
        os.link(path, aside)
    os.replace(_mended(path), path)
    return aside


def _mended(path: Path) -> Path:
    return path.with_name(f"{path.name}.mended")


@contextmanager
def mending(path: Path) -> Iterator[None]:
    """One mends at a time; whoever waited finds a journal that is whole."""
    with open(path.with_name(f"{path.name}.mend-lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fact_tables() -> list[sa.Table]:
    return [table for table in schema.metadata.sorted_tables if "crc" in table.c]


def facts_in(path: Path) -> Iterator[tuple[sa.Table, dict[str, Any]]]:
    """Every fact in the file at `path` and its write-ahead log, with its number; some twice."""
    data = path.read_bytes()
    log = path.with_name(f"{path.name}-wal")
    frames = log.read_bytes() if log.exists() else b""
    size = _page_size(data, frames)
    pages = {n + 1: data[n * size : (n + 1) * size] for n in range(-(-len(data) // size))}
    by_width: dict[int, list[sa.Table]] = {}
    for table in fact_tables():
        by_width.setdefault(len(table.columns), []).append(table)
    newer = {**pages, **dict(_logged(frames, size))}
    for number, page in [*pages.items(), *_logged(frames, size)]:
        for rowid, payload in _records(page, HEADER if number == 1 else 0, size, newer, pages):
            fact = _fact(rowid, payload, by_width)
            if fact is not None:
                yield fact


def _page_size(data: bytes, frames: bytes) -> int:
    """As the file says, else as its log says, else as SQLite has it by default."""
    told = [int.from_bytes(data[16:18], "big"), int.from_bytes(frames[8:12], "big")]
    sizes = [65536 if size == 1 else size for size in told]
    usual = [s for s in sizes if 512 <= s <= 65536 and s & (s - 1) == 0]
    # A flipped bit makes another power of two at best: 4096 is what this journal is made with.
    return 4096 if 4096 in usual or not usual else usual[0]


def _logged(frames: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    for at in range(LOG_HEADER, len(frames) - FRAME_HEADER, FRAME_HEADER + size):
        number = int.from_bytes(frames[at : at + 4], "big")
        yield number, frames[at + FRAME_HEADER : at + FRAME_HEADER + size]


def _records(
    page: bytes, first: int, size: int, *chains: Mapping[int, bytes]
) -> Iterator[tuple[int, bytes]]:
    """(number, payload) of each cell of a leaf; of a long one as often as there are `chains`."""
    if len(page) < first + 8 or page[first] != LEAF:
        return
    cells = int.from_bytes(page[first + 3 : first + 5], "big")
    for place in range(first + 8, min(first + 8 + 2 * cells, len(page) - 1), 2):
        try:
            at = int.from_bytes(page[place : place + 2], "big")
            length, at = _varint(page, at)
            rowid, at = _varint(page, at)
            if length > LONGEST:
                continue
            for pages in chains if length > size - 35 else chains[:1]:
                yield rowid, _payload(page, at, length, size, pages)
        except (IndexError, ValueError, KeyError):
            continue


def _payload(page: bytes, at: int, length: int, size: int, pages: Mapping[int, bytes]) -> bytes:
    if length <= size - 35:
        return page[at : at + length]
    least = (size - 12) * 32 // 255 - 23
    local = least + (length - least) % (size - 4)
    local = local if local <= size - 35 else least
    parts, left = [page[at : at + local]], length - local
    follows = int.from_bytes(page[at + local : at + local + 4], "big")
    while left > 0:
        over = pages[follows]
        parts.append(over[4 : 4 + min(left, size - 4)])
        left -= size - 4
        follows = int.from_bytes(over[:4], "big")
    return b"".join(parts)


def _fact(
    rowid: int, payload: bytes, by_width: Mapping[int, Sequence[sa.Table]]
) -> tuple[sa.Table, dict[str, Any]] | None:
    try:
        values = _values(payload)
    except (IndexError, ValueError, struct.error):
        return None
    for table in by_width.get(len(values), ()):
        row = dict(zip((c.name for c in table.columns), values, strict=True))
        for column in table.columns:
            value = row[column.name]
            if column.autoincrement is True:
                row[column.name] = rowid
            elif isinstance(column.type, schema.Json):
                row[column.name] = column.type.process_result_value(value, None)
            elif isinstance(column.type, sa.Boolean) and value in (0, 1):
                row[column.name] = bool(value)
        if schema.is_sound(table, row):
            del row["crc"]
            return table, row
    return None


_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""Bytes of an integer, by its serial type."""


def _values(payload: bytes) -> list[Any]:
    """The values of a record."""
    end, at = _varint(payload, 0)
    kinds = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    values: list[Any] = []
    at = end
    for kind in kinds:
        if kind in _INTEGERS:
            size = _INTEGERS[kind]
            values.append(int.from_bytes(payload[at : at + size], "big", signed=True))
        elif kind == 7:
            size = 8
            values.append(struct.unpack(">d", payload[at : at + 8])[0])
        elif kind >= 12:
            size = (kind - 12) // 2
            piece = payload[at : at + size]
            values.append(piece.decode() if kind % 2 else piece)
        else:
            size = 0
            values.append({8: 0, 9: 1}.get(kind))
        at += size
    if at > len(payload):
        raise ValueError("it ends too early")
    return values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = 0
    for place in range(8):
        byte = data[at + place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    return value << 8 | data[at + 8], at + 9
