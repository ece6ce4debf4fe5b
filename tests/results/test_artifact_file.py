"""Reading artifacts that somebody else made: every change is noticed, every misfit is named."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunefarm.errors import ArtifactError, ArtifactIncompatible, ArtifactTampered
from tunefarm.results.artifact import _pack
from tunefarm.results.artifact_file import (
    MANIFEST,
    misfits,
    open_artifact,
    require_fit,
    rounded_to,
    unpacked_library,
    verify,
)
from tunefarm.results.manifest import LIBRARY, WEIGHTS

PARTS = {LIBRARY: b"library bytes", "schedules.json": b"{}"}


def manifest(**changes: Any) -> dict[str, Any]:
    whole = {
        "schema": 1,
        "complete": True,
        "name": "net",
        "model": {"source": "net.onnx", "digest": "0" * 64},
        "target": {"kind": "llvm"},
        "device": {"sku": "Paper CPU"},
        "threads": 2,
        "inputs": [{"name": "x", "shape": [1, 3], "dtype": "float32"}],
        "outputs": [],
        "kernels": [{"name": "matmul", "tuned": True}],
        "result": {
            "verdict": "FASTER",
            "baseline_ms": 2.0,
            "tuned_ms": 1,
            "speedup": 2.0,
            "parity": {"passed": True},
        },
        "requires": {
            "os": sys.platform,
            "machine": platform.machine(),
            "cpu_features": [],
            "tvm_runtime": version("apache-tvm"),
        },
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in PARTS.items()
        },
    }
    return {**whole, **changes}


def write(path: Path, parts: dict[str, bytes] | None = None, **changes: Any) -> Path:
    head = json.dumps(manifest(**changes)).encode()
    _pack(path, {MANIFEST: head, **(parts or PARTS)})
    return path


def test_a_sound_artifact(tmp_path: Path) -> None:
    artifact = open_artifact(write(tmp_path / "a.tfa"))
    assert verify(artifact) == sorted(PARTS)
    assert artifact.read("schedules.json") == b"{}"
    require_fit(artifact)


def test_a_directory_is_an_artifact_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(write(tmp_path / "a.tfa")) as archive:
        archive.extractall(tmp_path / "a")
    packed, unpacked = open_artifact(tmp_path / "a.tfa"), open_artifact(tmp_path / "a")
    assert packed.digest == unpacked.digest
    assert verify(unpacked) == sorted(PARTS)
    (tmp_path / "a" / "extra").write_text("x")
    with pytest.raises(ArtifactTampered, match="extra"):
        verify(unpacked)


def test_packing_is_deterministic(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"many weights" * 100)
    for name in ("one", "two"):
        _pack(tmp_path / name, {**PARTS, WEIGHTS: file})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with zipfile.ZipFile(tmp_path / "one") as archive:
        assert archive.read(WEIGHTS) == file.read_bytes()
        assert archive.getinfo(WEIGHTS).compress_type == zipfile.ZIP_STORED


def test_a_part_is_read_into_memory_that_is_there(tmp_path: Path) -> None:
    artifact = open_artifact(write(tmp_path / "a.tfa"))
    memory = bytearray(len(PARTS[LIBRARY]))
    artifact.read_into(LIBRARY, memoryview(memory))
    assert bytes(memory) == PARTS[LIBRARY]
    for wrong in (PARTS[LIBRARY][:-1], PARTS[LIBRARY][:-1] + b"?"):
        changed = open_artifact(write(tmp_path / "b.tfa", {**PARTS, LIBRARY: wrong}))
        with pytest.raises(ArtifactTampered, match="digest"):
            changed.read_into(LIBRARY, memoryview(memory))
    longer = open_artifact(write(tmp_path / "c.tfa", {**PARTS, LIBRARY: PARTS[LIBRARY] + b"more"}))
    with pytest.raises(ArtifactTampered, match="larger"):
        longer.read_into(LIBRARY, memoryview(memory))
    with pytest.raises(ArtifactTampered, match="not in its manifest"):
        artifact.read_into("lib/other", memoryview(memory))


def test_a_link_is_no_part(tmp_path: Path) -> None:
    with zipfile.ZipFile(write(tmp_path / "a.tfa")) as archive:
        archive.extractall(tmp_path / "a")
    library = tmp_path / "a" / LIBRARY
    library.rename(tmp_path / "elsewhere")
    library.symlink_to(tmp_path / "elsewhere")
    artifact = open_artifact(tmp_path / "a")
    for read in (
        lambda: artifact.read(LIBRARY),
        lambda: artifact.read_into(LIBRARY, memoryview(bytearray(len(PARTS[LIBRARY])))),
    ):
        with pytest.raises(ArtifactTampered, match="not a file"):
            read()


def test_since_schema_2_weights_are_needed(tmp_path: Path) -> None:
    with pytest.raises(ArtifactTampered, match="not complete"):
        open_artifact(write(tmp_path / "a.tfa", schema=2))


@pytest.mark.parametrize("changed", sorted(PARTS))
def test_a_changed_part_is_noticed(tmp_path: Path, changed: str) -> None:
    data = PARTS[changed]
    parts = {**PARTS, changed: data[:-1] + bytes([data[-1] ^ 1])}
    with pytest.raises(ArtifactTampered, match=changed):
        verify(open_artifact(write(tmp_path / "a.tfa", parts)))


def test_missing_added_and_longer_parts_are_noticed(tmp_path: Path) -> None:
    for parts in (
        {LIBRARY: PARTS[LIBRARY]},
        {**PARTS, "lib/other.so": b""},
        {**PARTS, LIBRARY: PARTS[LIBRARY] + b"more"},
    ):
        with pytest.raises(ArtifactTampered):
            verify(open_artifact(write(tmp_path / "a.tfa", parts)))


def test_what_another_unzipper_would_find_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfa")
    sound = path.read_bytes()
    path.write_bytes(b"#!/bin/sh\n" + sound)
    with pytest.raises(ArtifactTampered, match="before its first part"):
        verify(open_artifact(path))
    path.write_bytes(sound)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(LIBRARY, PARTS[LIBRARY])
    with pytest.raises(ArtifactTampered, match=f"more than once: {LIBRARY}"):
        verify(open_artifact(path))


def test_little_of_a_large_part_is_in_memory(tmp_path: Path) -> None:
    """A directory whose manifest lists a terabyte of weights."""
    with zipfile.ZipFile(write(tmp_path / "a.tfa")) as archive:
        archive.extractall(tmp_path / "a")
    (tmp_path / "a" / WEIGHTS).write_bytes(b"weights")
    listed = {**manifest()["files"], WEIGHTS: {"bytes": 2**40, "sha256": "0" * 64}}
    (tmp_path / "a" / MANIFEST).write_text(json.dumps(manifest(schema=2, files=listed)))
    with pytest.raises(ArtifactTampered, match="digest"):
        verify(open_artifact(tmp_path / "a"))


def test_a_library_is_unpacked_where_it_may_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = open_artifact(write(tmp_path / "a.tfa"))
    monkeypatch.setenv("TUNEFARM_CACHE", str(tmp_path / "cache"))
    with unpacked_library(artifact) as first, unpacked_library(artifact) as second:
        assert first == second
        assert first.read_bytes() == PARTS[LIBRARY]
    assert first.parent == tmp_path / "cache" / "tunefarm"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TUNEFARM_CACHE", str(tmp_path / "file"))
    with unpacked_library(artifact) as path:
        assert path.read_bytes() == PARTS[LIBRARY]
    assert not path.exists(), "it was for this once"


@pytest.mark.parametrize(
    "changes",
    [
        {"complete": False},
        {"files": {}},
        {"files": {"../evil": {"bytes": 1, "sha256": "x"}, LIBRARY: {"bytes": 1, "sha256": "x"}}},
        {"files": [1]},
        {"schema": "x"},
        {"requires": {}},
        {"files": {LIBRARY: {"bytes": "12", "sha256": "x"}}},
        {"schema": float("inf")},
        {"kernels": None},
        {"threads": True},
        {"inputs": [{"name": "x", "shape": ["1"], "dtype": "float32"}]},
        {"requires": {**manifest()["requires"], "cpu_features": None}},
        {"requires": {**manifest()["requires"], "tvm_runtime": 21}},
        {"requires": {**manifest()["requires"], "gpu": {"arch": "sm_90"}}},
    ],
)
def test_a_manifest_without_sense_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ArtifactTampered):
        open_artifact(write(tmp_path / "a.tfa", **changes))


def test_what_is_no_artifact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no artifact"):
        open_artifact(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ArtifactTampered, match="cannot be read"):
        open_artifact(tmp_path / "text")
    _pack(tmp_path / "deep.tfa", {MANIFEST: b"[" * 100_000})
    with pytest.raises(ArtifactTampered, match="no sense"):
        open_artifact(tmp_path / "deep.tfa")
    with pytest.raises(ArtifactIncompatible, match="schema 99"):
        open_artifact(write(tmp_path / "a.tfa", schema=99, complete=False))


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_flipped_bit_or_torn_tail_is_served(tmp_path: Path, data: st.DataObject) -> None:
    path = write(tmp_path / "a.tfa")
    sound = path.read_bytes()
    if data.draw(st.booleans()):
        damaged = sound[: data.draw(st.integers(0, len(sound) - 1))]
    else:
        place = data.draw(st.integers(0, len(sound) - 1))
        damaged = bytearray(sound)
        damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(damaged))
    try:
        artifact = open_artifact(path)
        contents = {name: artifact.read(name) for name in verify(artifact)}
    except ArtifactError:
        return
    assert contents == PARTS  # the damage hit nothing that is read


@pytest.mark.parametrize(
    ("allowed", "computed_in", "rounded"),
    [
        ("bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", ""),  # nothing of the model was
        ("tf32", "tf32", "tf32"),
        (None, "bfloat16", ""),  # the model's own
        ("bfloat16", "int8", ""),
    ],
)
def test_what_was_allowed_and_done_is_told(
    allowed: str | None, computed_in: str, rounded: str
) -> None:
    target = {"kind": "llvm", **({"precision": allowed} if allowed else {})}
    assert rounded_to(manifest(target=target, computed_in=computed_in)) == rounded
    assert rounded_to(manifest(target=target)) == "", "older ones do not say it"


@pytest.mark.parametrize(
    ("requires", "words"),
    [
        ({"os": "plan9"}, "plan9"),
        ({"machine": "vax"}, "vax"),
        ({"cpu_features": ["avx9000"]}, "avx9000"),
        ({"cpu_features": ["amx_fp4"]}, "amx_fp4, or the system does not lend it"),
        ({"tvm_runtime": "9.9.0"}, "9.9.0"),
    ],
)
def test_a_misfit_is_named(tmp_path: Path, requires: dict[str, Any], words: str) -> None:
    whole = manifest()
    whole["requires"] = {**whole["requires"], **requires}
    assert any(words in reason for reason in misfits(whole))
    path = write(tmp_path / "a.tfa", requires=whole["requires"])
    with pytest.raises(ArtifactIncompatible, match=words) as caught:
        require_fit(open_artifact(path))
    assert caught.value.exit_code == 6


@pytest.mark.slow
def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, json.dumps(manifest()))
        for name in PARTS:
            archive.writestr(name, b"\0" * 50_000_000)
    (tmp_path / "a.tfa").write_bytes(buffer.getvalue())
    with pytest.raises(ArtifactTampered, match="larger"):
        verify(open_artifact(tmp_path / "a.tfa"))
