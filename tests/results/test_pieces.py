"""Weights are read by pieces, several at a time, and every change of them is noticed."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.results.test_artifact_file import PARTS, manifest
from tunefarm.errors import ArtifactTampered
from tunefarm.results import pieces
from tunefarm.results.artifact import _listed, _pack
from tunefarm.results.artifact_file import MANIFEST, open_artifact, verify
from tunefarm.results.manifest import WEIGHTS

LENGTH = 5000
DATA = bytes(range(256)) * 100  # five pieces and a part of one


def in_pieces(data: bytes, length: int = LENGTH) -> dict[str, Any]:
    digests = [
        hashlib.sha256(data[at : at + length]).hexdigest() for at in range(0, len(data), length)
    ]
    return {"bytes": length, "sha256": digests}


def written(path: Path, data: bytes = DATA, compressed: bool = False, **entry: Any) -> Path:
    """An artifact with `data` for weights, whose entry in the manifest is that of `DATA`."""
    file = path.with_suffix(".weights")
    file.write_bytes(data)
    of_data = {"bytes": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}
    listed = {**of_data, "pieces": in_pieces(DATA), **entry}
    parts = {**PARTS, WEIGHTS: data if compressed else file}
    files = {**manifest()["files"], WEIGHTS: listed}
    head = json.dumps(manifest(schema=2, files=files)).encode()
    _pack(path, {MANIFEST: head, **parts})
    return path


def unpacked(path: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        archive.extractall(path.with_suffix(""))
    return path.with_suffix("")


def read(path: Path, size: int = len(DATA)) -> bytes:
    memory = memoryview(bytearray(size))
    open_artifact(path).read_into(WEIGHTS, memory)
    return bytes(memory)


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("how", ["packed", "unpacked", "compressed"])
def test_they_are_there_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, how: str
) -> None:
    monkeypatch.setattr(pieces.os, "sched_getaffinity", lambda _: range(threads))
    path = written(tmp_path / "a.tfa", compressed=how == "compressed")
    path = unpacked(path) if how == "unpacked" else path
    assert read(path) == DATA
    assert verify(open_artifact(path))


def test_no_more_threads_are_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where processes are counted: then with fewer, and with none but this one."""
    monkeypatch.setattr(pieces.os, "sched_getaffinity", lambda _: range(5))
    path = written(tmp_path / "a.tfa")
    for allowed in (0, 2):
        left = iter([True] * allowed)

        class Thread(threading.Thread):
            def start(self, left=left) -> None:
                if not next(left, False):
                    raise RuntimeError("can't start new thread")
                super().start()

        monkeypatch.setattr(pieces.threading, "Thread", Thread)
        assert read(path) == DATA


def test_nobody_reads_on_when_reading_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces.os, "sched_getaffinity", lambda _: range(3))
    path = written(tmp_path / "a.tfa")
    plain, main = pieces._fill, threading.current_thread()

    def fill(*arguments: Any) -> bool:
        if threading.current_thread() is main:
            raise KeyboardInterrupt
        time.sleep(0.05)
        return plain(*arguments)

    monkeypatch.setattr(pieces, "_fill", fill)
    with pytest.raises(KeyboardInterrupt):
        read(path)
    assert threading.active_count() == 1


@pytest.mark.parametrize("how", ["link", "pipe"])
def test_weights_are_a_file(tmp_path: Path, how: str) -> None:
    place = unpacked(written(tmp_path / "a.tfa"))
    (place / WEIGHTS).rename(tmp_path / "elsewhere")
    if how == "link":
        (place / WEIGHTS).symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(place / WEIGHTS)
    with pytest.raises(ArtifactTampered, match="not a file"):
        read(place)


def test_pieces_and_the_whole_are_verified(tmp_path: Path) -> None:
    """Loading looks at the ones, and whoever compares artifacts at the other."""
    other = DATA[:-1] + b"?"
    path = written(tmp_path / "a.tfa", pieces=in_pieces(other))
    with pytest.raises(ArtifactTampered, match="not made up of its pieces"):
        verify(open_artifact(path))
    path = written(tmp_path / "b.tfa", sha256=hashlib.sha256(other).hexdigest())
    with pytest.raises(ArtifactTampered, match="does not have the digest"):
        verify(open_artifact(path))


def test_what_packaging_lists_is_what_loading_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE", LENGTH)
    file = tmp_path / "w"
    file.write_bytes(DATA)
    entry = _listed(file)
    assert entry["pieces"] == in_pieces(DATA)
    assert pieces.listed(entry, len(DATA)) == (LENGTH, in_pieces(DATA)["sha256"])
    checked = []
    plain = pieces.read
    monkeypatch.setattr(pieces, "read", lambda *a: checked.append(1) or plain(*a))
    assert read(written(tmp_path / "a.tfa", **entry)) == DATA
    assert checked, "and not by the digest of the whole"
    file.write_bytes(b"")
    assert pieces.listed(_listed(file), 0) == (LENGTH, [])


@given(at=st.integers(0, len(DATA) - 1), bit=st.integers(0, 7))
@settings(max_examples=30)
def test_a_changed_bit_is_noticed_wherever_it_is(tmp_path_factory, at: int, bit: int) -> None:
    changed = bytearray(DATA)
    changed[at] ^= 1 << bit
    path = written(tmp_path_factory.mktemp("changed") / "a.tfa", bytes(changed))
    for place in (path, unpacked(path)):
        with pytest.raises(ArtifactTampered, match="does not have the digest"):
            read(place)


@pytest.mark.parametrize("size", [0, 1, LENGTH, len(DATA) - 1, len(DATA) + 1])
def test_another_length_is_noticed(tmp_path: Path, size: int) -> None:
    path = written(tmp_path / "a.tfa", (DATA + b"x")[:size])
    for place in (path, unpacked(path)):
        with pytest.raises(ArtifactTampered):
            read(place)


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        3,
        {},
        {"bytes": LENGTH},
        {"bytes": "5000", "sha256": in_pieces(DATA)["sha256"]},
        {"bytes": 0, "sha256": []},
        {"bytes": 1, "sha256": ["0" * 64] * len(DATA)},  # a thread's work for every byte
        {"bytes": LENGTH, "sha256": in_pieces(DATA)["sha256"][:-1]},
        {"bytes": LENGTH, "sha256": "0" * 6},
    ],
    ids=str,
)
def test_without_pieces_that_make_it_up_the_whole_is_checked(tmp_path: Path, nonsense: Any) -> None:
    """As of an older tunefarm's artifact."""
    assert read(written(tmp_path / "a.tfa", pieces=nonsense)) == DATA
    with pytest.raises(ArtifactTampered, match="does not have the digest"):
        read(written(tmp_path / "b.tfa", DATA[:-1] + b"?", pieces=nonsense))


@pytest.mark.parametrize("wrong", [["0" * 64] * 6, [None] * 6, [3] * 6], ids=str)
def test_digests_of_something_else(tmp_path: Path, wrong: list[Any]) -> None:
    with pytest.raises(ArtifactTampered):
        read(written(tmp_path / "a.tfa", pieces={"bytes": LENGTH, "sha256": wrong}))


def test_a_list_of_parts_that_points_elsewhere(tmp_path: Path) -> None:
    """Within the file, and past its end."""
    path = written(tmp_path / "a.tfa")
    raw = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        offset = archive.getinfo(WEIGHTS).header_offset
    listed = raw.rindex(WEIGHTS.encode()) - 4  # of the central directory: where the part begins
    assert raw[listed : listed + 4] == offset.to_bytes(4, "little")
    for elsewhere in (offset + 1, len(raw) - 10, len(raw) + 1000):
        moved = raw[:listed] + elsewhere.to_bytes(4, "little") + raw[listed + 4 :]
        (tmp_path / "b.tfa").write_bytes(moved)
        with pytest.raises(ArtifactTampered):
            read(tmp_path / "b.tfa")
