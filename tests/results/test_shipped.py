"""What earlier jobs have shipped is found, and refused where it could not run beside another."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.results.test_journal import make_job
from tunefarm.devices.device import Device
from tunefarm.errors import ArtifactError, ArtifactTampered
from tunefarm.frontend.pass_log import BASELINE
from tunefarm.frontend.program import Program, TensorSpec
from tunefarm.home import Home
from tunefarm.measure import weights
from tunefarm.measure.facts import PREVIOUS
from tunefarm.measure.gate import Parity
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.stats import Comparison, Verdict
from tunefarm.results.artifact import Packaged, _features, _untuned, package
from tunefarm.results.facts import PACKAGED, Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.results.manifest import LIBRARY, WEIGHTS
from tunefarm.results.shipped import (
    Shipped,
    is_same,
    lay_out,
    note_previous,
    noted_previous,
    open_alike,
    previous,
    shipped_before,
)
from tunefarm.search.candidate import IN_MATRICES, MATRIX_ATTENTION

X = TensorSpec("x", (4,), "float32")
Y = TensorSpec("y", (4,), "float32")


@pytest.fixture
def journal(home: Home):
    made = Journal(home)
    yield made
    made.close()


def program_at(directory: Path) -> Program:
    told = dict.fromkeys(("digest", "producer", "layout"), "")
    evidence = {**told, "opset": 17, "kernels": 0, "passes": [], "parameter_bytes": 4}
    return Program(directory, (X,), (Y,), (), evidence)


def libraries(directory: Path, code: bytes, constants: bytes = b"weights") -> Path:
    """A library's file with its weights beside it; nothing here runs them."""
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / "tuned.so"
    library.write_bytes(code)
    weights.beside(library).write_bytes(constants)
    return library


def shipped(
    journal: Journal,
    job: Job,
    target: JobTarget,
    library: Path,
    speedup: float = 2.0,
    by: str | None = "9",
) -> Packaged:
    """That `job` has packaged it, how much faster than untuned it found it, and which version of
    tunefarm that was."""
    low, high = speedup - 0.1, speedup + 0.1
    found = Comparison(2e-3, 2e-3 / speedup, speedup, low, high, Verdict.FASTER)
    journal.add_job(job, [target])
    made = package(
        journal.home,
        journal,
        job,
        target,
        program_at(library.parent),
        library,
        traces={},
        comparison=found,
        parity=Parity(0.0, 0.0, True),
        conditions={},
        protocol=Protocol().to_dict(),
        wall_s=1.0,
    )
    if by is not None:
        journal.add_event(job.id, PACKAGED, target=target.name, tunefarm=by)
    journal.add_artifact(job.id, target.name, job.name, made.digest, made.path, made.summary)
    return made


def of(created: float, **changes: Any) -> Job:
    return dataclasses.replace(make_job(job=f"net-{created:g}"), created=created, **changes)


@pytest.mark.slow
def test_who_holds_the_alias_is_found(journal: Journal, device: Device, tmp_path: Path) -> None:
    target = JobTarget("llvm", device.target, device, "tc")
    other = dataclasses.replace(device, sku="Another CPU")
    assert other.fingerprint != device.fingerprint
    mine = of(9.0)
    assert shipped_before(journal, mine, target) is None

    def add(job: Job, speedup: float = 2.0, on: Device = device, name: str = "llvm") -> Shipped:
        library = libraries(tmp_path / job.id, job.id.encode())
        made = shipped(journal, job, JobTarget(name, on.target, on, "tc"), library, speedup)
        return Shipped(made.digest, job.id, made.path)

    first = add(of(1.0))
    assert shipped_before(journal, mine, target) == first
    second = add(of(2.0))
    assert shipped_before(journal, mine, target) == second, "the newer one"
    add(of(3.0), speedup=1.2)
    add(of(4.0, name="another"))
    add(of(5.0), on=other)
    add(of(6.0), name="host")
    add(of(7.0, options={**mine.options, "shapes": [["x", [8, 3]]]}))
    add(of(10.0))
    assert shipped_before(journal, mine, target) == second
    assert shipped_before(journal, of(2.0), target) == first, "as it was then"


def test_speed_ups_over_the_untuned_builds_of_two_tunefarms_are_not_compared(
    journal: Journal, device: Device, tmp_path: Path
) -> None:
    """As the registry does not, whose tags say which one it was."""
    target = JobTarget("llvm", device.target, device, "tc")
    shipped(journal, of(1.0), target, libraries(tmp_path / "1", b"1"))
    for created, by in ((2.0, None), (3.0, "0.0.1")):
        library = libraries(tmp_path / f"{created}", by.encode() if by else b"none")
        made = shipped(journal, of(created), target, library, 1.2, by)
        found = shipped_before(journal, of(9.0), target)
        assert found is not None
        assert found.digest == made.digest, "the newer one, slower as it may seem"


def test_an_older_tunefarms_verdict_on_what_did_not_ship_counts_for_nothing(
    journal: Journal, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has packaged the untuned build, for the tuned one was wrong, with that one's verdict."""
    target = JobTarget("llvm", device.target, device, "tc")
    old = shipped(journal, of(1.0), target, libraries(tmp_path / "1", b"1"), speedup=98.0)
    journal.add_event("net-1", "checked", target="llvm", tuned=False, parity={})
    new = shipped(journal, of(2.0), target, libraries(tmp_path / "2", b"2"), speedup=40.0)
    found = shipped_before(journal, of(9.0), target)
    assert found is not None
    assert found.digest == old.digest, "a verdict with its reason is true of what shipped"
    told = {key: value for key, value in old.summary.items() if key != "why_untuned"}
    rows = Journal.artifacts

    def as_then(self: Journal, job: str | None = None) -> list[dict[str, Any]]:
        older = {old.digest: {"summary": told}}
        return [{**row, **older.get(row["digest"], {})} for row in rows(self, job)]

    monkeypatch.setattr(Journal, "artifacts", as_then)
    found = shipped_before(journal, of(9.0), target)
    assert found is not None
    assert found.digest == new.digest


def test_a_record_that_is_damaged_is_passed_over(
    journal: Journal, device: Device, tmp_path: Path
) -> None:
    target = JobTarget("llvm", device.target, device, "tc")
    whole = shipped(journal, of(1.0), target, libraries(tmp_path / "1", b"1"))
    shipped(journal, of(2.0), target, libraries(tmp_path / "2", b"2"))
    with sqlite3.connect(journal.home.root / "journal.db") as raw:
        raw.execute("update job_targets set toolchain = 'x' where job = 'net-2'")
    raw.close()
    found = shipped_before(journal, of(9.0), target)
    assert found is not None
    assert found.digest == whole.digest


def test_it_is_laid_out_as_it_was(journal: Journal, device: Device, tmp_path: Path) -> None:
    target = JobTarget("llvm", device.target, device, "tc")
    library = libraries(tmp_path / "made", b"code", b"many weights")
    shipped(journal, of(1.0), target, library)
    found = shipped_before(journal, of(2.0), target)
    assert found is not None
    artifact = open_alike(found, (X,), (Y,), target)
    lay_out(artifact, tmp_path / "job" / "previous.so")
    assert (tmp_path / "job" / "previous.so").read_bytes() == b"code"
    assert weights.beside(tmp_path / "job" / "previous.so").read_bytes() == b"many weights"
    assert is_same(artifact, library)
    assert not is_same(artifact, libraries(tmp_path / "one", b"kode", b"many weights"))
    assert not is_same(artifact, libraries(tmp_path / "two", b"code", b"other weights"))


def test_what_cannot_run_beside_it_is_refused(
    journal: Journal, device: Device, tmp_path: Path
) -> None:
    target = JobTarget("llvm", device.target, device, "tc")
    made = shipped(journal, of(1.0), target, libraries(tmp_path / "made", b"code"))
    other = shipped(journal, of(2.0), target, libraries(tmp_path / "other", b"kode"))
    found = Shipped(made.digest, "net-1", made.path)
    wider = dataclasses.replace(X, shape=(8,))
    with pytest.raises(ArtifactError, match="other inputs"):
        open_alike(found, (wider,), (Y,), target)
    with pytest.raises(ArtifactError, match="other outputs"):
        open_alike(found, (X,), (Y, Y), target)
    for toolchain in ((("tvm", "9.1"),), ()):
        newer = dataclasses.replace(device, toolchain=toolchain)
        with pytest.raises(ArtifactError, match=r"needs the TVM runtime 0\.27"):
            open_alike(found, (X,), (Y,), dataclasses.replace(target, device=newer))
    with pytest.raises(ArtifactError, match="no artifact"):
        open_alike(dataclasses.replace(found, path=tmp_path / "gone.tfa"), (X,), (Y,), target)
    with pytest.raises(ArtifactTampered, match="another artifact"):
        open_alike(dataclasses.replace(found, path=other.path), (X,), (Y,), target)
    artifact = open_alike(found, (X,), (Y,), target)
    for part in (LIBRARY, WEIGHTS):
        listed = {**artifact.manifest["files"]}
        listed[part] = {"bytes": listed[part]["bytes"], "sha256": "0" * 64}
        forged = dataclasses.replace(artifact, manifest={**artifact.manifest, "files": listed})
        with pytest.raises(ArtifactTampered):
            lay_out(forged, tmp_path / part / "previous.so")
        assert not (tmp_path / part / "previous.so").exists(), "nothing half done would run"


def test_what_is_known_of_it(journal: Journal, device: Device) -> None:
    journal.add_job(of(1.0), [JobTarget("llvm", device.target, device, "tc")])
    assert previous(journal, "net-1", "llvm") is None
    found = Shipped("d", "net-0", Path("net.tfa"))
    note_previous(journal, "net-1", "llvm", found, same=True)
    assert noted_previous(journal, "net-1", "llvm") == (found, True)
    assert previous(journal, "net-1", "cuda") is None
    nothing = {"digest": "d", "job": "net-0", "speedup": None, "speedup_ci95": None}
    unmeasured = {**nothing, "verdict": "UNMEASURED"}
    assert previous(journal, "net-1", "llvm") == unmeasured, "not before there is a verdict"
    note_previous(journal, "net-1", "llvm", found, same=False)
    assert noted_previous(journal, "net-1", "llvm") == (found, False), "it is built anew"
    beside = Comparison(2e-3, 1e-3, 2.0, 1.9, 2.1, Verdict.FASTER)
    journal.add_verdict("net-1", "llvm", PREVIOUS, "d", beside)
    measured = previous(journal, "net-1", "llvm")
    assert measured is not None
    assert (measured["verdict"], measured["speedup"]) == ("FASTER", 2.0)
    assert measured["speedup_ci95"] == [1.9, 2.1]
    note_previous(journal, "net-1", "llvm", dataclasses.replace(found, digest="e"), same=False)
    assert previous(journal, "net-1", "llvm") == {**unmeasured, "digest": "e"}


@pytest.mark.parametrize(
    ("note", "lent"),
    [("tunefarm.point", False), (IN_MATRICES, True), (f"{MATRIX_ATTENTION} tasks=1", True)],
)
def test_what_the_system_lends_is_needed_where_a_kernel_uses_it(
    device: Device, note: str, lent: bool
) -> None:
    here = dataclasses.replace(device, features=("amx_bf16", "amx_tile", "avx2"))
    needed = _features(here, {"one": '["another"]', "two": json.dumps([[note]])})
    assert needed == (["amx_bf16", "amx_tile", "avx2"] if lent else ["avx2"])


def test_an_untuned_build_rounds_nothing_that_was_allowed(tmp_path: Path) -> None:
    """It is made of the program as it was before that."""
    program = program_at(tmp_path)
    before = [{"pass": "onnx.expand", "detail": ""}, {"pass": "relax.FuseOps", "detail": BASELINE}]
    notes = [*before, {"pass": "relax.round_factors", "detail": ""}]
    told = {**program.evidence, "passes": notes, "precision": "bfloat16"}
    rounded = replace(program, evidence={**told, "untuned_precision": "float32"})
    plain = _untuned(rounded)
    assert plain.precision == "float32"
    assert plain.evidence["passes"] == before
    assert _untuned(replace(program, evidence=told)).precision == "bfloat16", "an older program's"
