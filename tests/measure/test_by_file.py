"""Measuring by file: out as one archive, run with Python and NumPy alone, back as a report."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import venv
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import models
from tests.bench import PROTOCOL, imported
from tests.simulated import SimulatedDevice, requests_on_paper
from tunefarm.devices.device import Device
from tunefarm.devices.here import device_here
from tunefarm.devices.probe import probe
from tunefarm.devices.target import make_target
from tunefarm.errors import (
    ArtifactIncompatible,
    ArtifactTampered,
    Failure,
    FailureKind,
)
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.bundles.bundle import (
    Report,
    read_bundle,
    read_report,
    unpack_files,
    write_bundle,
    write_report,
)
from tunefarm.measure.bundles.run import run_bundle
from tunefarm.measure.bundles.runtime_files import runtime_files
from tunefarm.measure.facts import (
    Checked,
    ColdStart,
    Compared,
    KernelFacts,
    Screening,
    ScreenOutcome,
)
from tunefarm.measure.files import needs
from tunefarm.measure.gate import Parity
from tunefarm.measure.requests import KernelRace, RaceRequest, ScreenRequest
from tunefarm.measure.wire import WireError, canonical, from_wire, to_wire

ANSWERS = [
    ScreenOutcome(Screening((0.1, 0.25), False), None),
    ScreenOutcome(None, Failure(FailureKind.WRONG_RESULT, "3 of 4 elements differ")),
    {"task": {"candidate": (0.5, 0.25)}, "other": {}},
    Checked(Path("/job/model/tuned.so"), Parity(0.0, 1e-6, True), None),
    Compared({"base": (0.5,), "tuned": (0.2, 0.3)}, ColdStart("base", 0.1, 0.6, 10**9), (0.2,)),
    (({"kernel": (0.1,)}), {"kernel": (0.2,)}),
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_come_back_as_they_were(answer) -> None:
    text = json.dumps(to_wire(answer, Path("/job")))
    assert from_wire(json.loads(text), Path("/job")) == answer


def test_what_travels_is_data(tmp_path: Path) -> None:
    with pytest.raises(WireError, match="does not travel"):
        to_wire(KernelRace, tmp_path)
    with pytest.raises(WireError, match="not below"):
        to_wire(Path("/etc/passwd"), tmp_path)
    for path in ("/etc/passwd", "a/../../b"):
        with pytest.raises(WireError, match="not below"):
            from_wire({"path": path}, tmp_path)
    assert from_wire(to_wire([math.inf, -math.inf], tmp_path), tmp_path) == (math.inf, -math.inf)
    for part in ({"samples": "x"}, {"samples": ["x"]}, {"samples": [1.0], "truncated": 3}):
        with pytest.raises(WireError, match="Screening"):
            from_wire({"is": "Screening", "truncated": False, **part}, tmp_path)
    for nonsense in ({"is": "Popen"}, {"is": "Failure"}, {"is": "Parity", "max": 1}, {"a": 1}):
        with pytest.raises(WireError):
            from_wire(nonsense, tmp_path)


def test_equal_requests_have_equal_text_wherever_their_job_lies(tmp_path: Path) -> None:
    here, there = (requests_on_paper(tmp_path / name) for name in ("here", "there"))
    assert canonical(here[0], tmp_path / "here") == canonical(there[0], tmp_path / "there")
    assert canonical(here[0], tmp_path / "here") != canonical(here[1], tmp_path / "here")


def test_a_bundle_goes_round_by_a_simulated_device(paper, tmp_path: Path) -> None:
    path, requests, root, gpu = paper
    simulated = SimulatedDevice()
    report = tmp_path / "one.report"
    said: list[str] = []
    run_bundle(path, report, said.append, gpu, simulated)
    assert [one.incumbent_s for one in simulated.asked] == [one.incumbent_s for one in requests]
    found = read_report(report, root)
    assert found.bundle == read_bundle(path).id
    assert found.device == gpu
    assert found.answers == {
        n: ScreenOutcome(Screening((0.5, 0.25, 0.5), False), None) for n in range(2)
    }
    assert found.files == {"reference/a.npz": b"a reference"}
    assert set(found.blocks) == {0}
    assert found.blocks[0].canary_s == 0.001
    assert found.blocks[0].conditions["temperature_c"] == 40
    assert said[0].startswith("2 measurements on Paper GPU")


def test_equal_bundles_have_equal_bytes(paper, tmp_path: Path) -> None:
    path, requests, root, gpu = paper
    files = [file for one in requests for file in needs(one) if file.exists()]
    again = tmp_path / "again"
    write_bundle(again, "job", gpu.target, gpu.fingerprint, requests, root, files)
    assert again.read_bytes() == path.read_bytes()


def test_what_two_libraries_share_is_packed_once(paper, tmp_path: Path) -> None:
    """As two builds of a model share its weights."""
    _, _, _, gpu = paper
    root = tmp_path / "job"
    for name in ("base", "tuned"):
        (root / name).mkdir(parents=True)
        (root / name / "weights").write_bytes(b"the same")
    path = tmp_path / "bundle"
    files = [root / name / "weights" for name in ("base", "tuned")]
    made = write_bundle(path, "job", gpu.target, "", [], root, files)
    with zipfile.ZipFile(path) as archive:
        assert sum(name.startswith("files/") for name in archive.namelist()) == 1
    unpack_files(path, made, tmp_path / "there")
    for name in ("base", "tuned"):
        assert (tmp_path / "there" / name / "weights").read_bytes() == b"the same"


def test_another_device_is_refused(paper, tmp_path: Path) -> None:
    path, _, _, gpu = paper
    other = replace(gpu, sku="Another GPU")
    with pytest.raises(ArtifactIncompatible, match="Another GPU"):
        run_bundle(path, tmp_path / "report", print, other, SimulatedDevice())
    path = tmp_path / "free.bundle"
    requests = requests_on_paper(tmp_path / "free")
    target = make_target("cuda", {"arch": "sm_80"})
    write_bundle(path, "job", target, "", requests, tmp_path / "free", [requests[0].library.path])
    with pytest.raises(ArtifactIncompatible, match="sm_80"):
        run_bundle(path, tmp_path / "report", print, gpu, SimulatedDevice())
    assert not (tmp_path / "report").exists()


def test_matrix_registers_that_are_not_there_are_named(paper, tmp_path: Path) -> None:
    """A processor's name is the bundle's: what is missing the features tell."""
    _, _, _, gpu = paper
    target = make_target("llvm", {"mcpu": "sapphirerapids", "num-cores": 2})
    root = tmp_path / "processor"
    requests = requests_on_paper(root)
    path = tmp_path / "bundle"
    write_bundle(path, "job", target, "", requests, root, [requests[0].library.path])
    here = replace(gpu, target=target, features=("avx2", "amx_tile"))
    with pytest.raises(ArtifactIncompatible, match="lacks amx_bf16, amx_int8, or"):
        run_bundle(path, tmp_path / "report", print, here, SimulatedDevice())
    assert not (tmp_path / "report").exists()


def _rewritten(path: Path, into: Path, name: str, change) -> Path:
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(into, "w") as new:
        for one in old.namelist():
            data = old.read(one)
            new.writestr(one, change(data) if one == name else data)
    return into


def changed(data: bytes, **keys: Any) -> bytes:
    return json.dumps({**json.loads(data), **keys}).encode()


def test_a_file_that_was_changed_is_refused(paper, tmp_path: Path) -> None:
    path, _, root, gpu = paper
    member = "files/" + read_bundle(path).digests["candidates/c.so"]
    bad = _rewritten(path, tmp_path / "bad", member, lambda data: b"a librarx")
    with pytest.raises(ArtifactTampered, match=r"c\.so is not the file"):
        unpack_files(bad, read_bundle(bad), tmp_path / "elsewhere")
    run_bundle(path, tmp_path / "report", lambda text: None, gpu, SimulatedDevice())
    bad = _rewritten(tmp_path / "report", tmp_path / "bad", "files/reference/a.npz", bytes.upper)
    with pytest.raises(ArtifactTampered, match=r"a\.npz is not the file"):
        read_report(bad, root)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: b"{}", ArtifactTampered),
        (lambda data: b"[1]", ArtifactTampered),
        (lambda data: data[:-10], ArtifactTampered),
        (lambda data: data.replace(b'"schema": 4', b'"schema": 9'), ArtifactIncompatible),
        # As they were written before there was a choice.
        (
            lambda data: data.replace(b'"schema": 4', b'"schema": 3').replace(b'"returns"', b'"x"'),
            ArtifactIncompatible,
        ),
        (lambda data: data.replace(b'"returns"', b'"x"'), ArtifactTampered),
        *(
            (lambda data, key=key, to=to: changed(data, **{key: to}), ArtifactTampered)
            for key, to in (
                ("target", {}),
                ("target", 5),
                ("files", [1]),
                ("files", {"a": 5}),
                ("requests", 5),
                ("requests", [{"path": 5}]),
                ("requests", [3]),
                ("requests", [{"is": "Failure", "kind": "crash", "message": "m"}]),
            )
        ),
        (lambda data: data.replace(b'"ScreenRequest"', b'"Popen"'), ArtifactTampered),
        (lambda data: data.replace(b"candidates/c.so", b"../../etc/c.so"), ArtifactTampered),
    ],
)
def test_a_bundle_that_is_none_is_refused(paper, tmp_path: Path, change, error) -> None:
    path, _, _, gpu = paper
    bad = _rewritten(path, tmp_path / "bad", "bundle.json", change)
    with pytest.raises(error):
        run_bundle(bad, tmp_path / "report", print, gpu, SimulatedDevice())
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b'"files": {', b'"files": [1], "x": {'),
        lambda data: data.replace(b'"canary_s"', b'"canary"'),
        lambda data: data.replace(b'"samples"', b'"sample"'),
        lambda data: data.replace(b"0.25", b'"fast"'),
        lambda data: data.replace(b'"temperature_c": 40', b'"temperature_c": {"path": "x"}'),
        lambda data: b"[" * 100_000,
        lambda data: b"{}",
    ],
)
def test_a_report_that_is_none_is_refused(paper, tmp_path: Path, change) -> None:
    path, _, root, gpu = paper
    run_bundle(path, tmp_path / "report", lambda text: None, gpu, SimulatedDevice())
    bad = _rewritten(tmp_path / "report", tmp_path / "bad", "report.json", change)
    assert bad.read_bytes() != (tmp_path / "report").read_bytes()
    with pytest.raises(ArtifactTampered):
        read_report(bad, root)


def test_a_damaged_report_is_refused(paper, tmp_path: Path) -> None:
    path, _, root, gpu = paper
    run_bundle(path, tmp_path / "report", lambda text: None, gpu, SimulatedDevice())
    whole = (tmp_path / "report").read_bytes()
    read = 0
    for at in range(0, len(whole), 7):
        (tmp_path / "bad").write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            read_report(tmp_path / "bad", root)
            read += 1  # in a date or another field that nobody believes
        except (ArtifactTampered, ArtifactIncompatible):
            pass
    assert read < len(whole) / 7 / 4


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content) -> None:
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArtifactTampered):
        read_bundle(path)
    with pytest.raises(ArtifactTampered):
        read_report(path, tmp_path)


def test_a_report_whose_files_leave_the_job_is_refused(tmp_path: Path, device: Device) -> None:
    for name in ("../elsewhere", "/etc/passwd"):
        write_report(tmp_path / "r", Report("b", device, {}, {}, {name: b""}), tmp_path)
        with pytest.raises(ArtifactTampered, match="not below its job"):
            read_report(tmp_path / "r", tmp_path)


def test_a_report_keeps_its_paths_below_the_job(tmp_path: Path, device: Device) -> None:
    root = tmp_path / "job"
    report = Report(
        "b", device, {3: Checked(root / "tuned.so", Parity(0.0, 0.0, True), None)}, {}, {}
    )
    write_report(tmp_path / "report", report, root)
    elsewhere = tmp_path / "elsewhere"
    assert read_report(tmp_path / "report", elsewhere).answers[3].library == elsewhere / "tuned.so"


@pytest.mark.tvm
def test_a_bundle_runs_with_python_and_numpy_alone(tmp_path: Path) -> None:
    """In an environment that has nothing else, and a directory from which nothing is found."""
    (device,) = probe()
    model = models.single_matmul(tmp_path / "matmul.onnx", 96)
    program = imported(tmp_path, model, device.target)
    (task,) = program.tasks
    root = tmp_path / "job"
    builder = Builder(60.0)
    built = builder.build(
        BuildRequest(program.workload(task.id), device.target, "", root / "candidates" / "u.so")
    )
    builder.close()
    assert built.library is not None
    facts = KernelFacts(task.id, task.args, task.flops, root / "reference" / "t.npz")
    untuned = ScreenRequest(built.library, facts, PROTOCOL, None, True)
    requests = [
        untuned,
        replace(untuned, make_reference=False),
        RaceRequest(((facts, (("c", built.library),)),), PROTOCOL, 3, 0),
    ]
    here = device_here(device.target)
    path = tmp_path / "one.bundle"
    write_bundle(
        path,
        "job",
        device.target,
        here.fingerprint,
        requests,
        root,
        [built.library.path],
        runtime_files(),
    )
    assert path.stat().st_size < 12e6
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True, with_pip=False)
    library = next((bare / "lib").glob("python*")) / "site-packages"
    # NumPy alone, as if it had been installed there.
    packages = Path(np.__file__).parents[1]
    for one in packages.iterdir():
        if one.name in ("numpy", "numpy.libs"):
            (library / one.name).symlink_to(one)
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [bare / "bin" / "python", path, tmp_path / "report", "--for", "5m"],
        cwd=empty,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_report(tmp_path / "report", root)
    assert report.device.fingerprint == here.fingerprint == device.fingerprint
    first, second, race = (report.answers[n] for n in range(3))
    assert first.failure is None
    assert second.failure is None, second.failure
    assert min(second.screening.samples) > 0
    assert len(race.samples[task.id]["c"]) >= 2
    assert set(report.files) == {"reference/t.npz"}
    assert sys.version_info[:2] == tuple(map(int, _python(report).split(".")[:2]))


@pytest.mark.slow
def test_the_runtime_has_no_compiler_and_can_have_parts_for_other_pythons(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "apache_tvm_ffi-cp399.whl", "w") as wheel:
        wheel.writestr("tvm_ffi/core.cpython-399-x86_64-linux-gnu.so", b"for another Python")
        wheel.writestr("tvm_ffi/registry.py", b"not from here")
    with zipfile.ZipFile(tmp_path / "ml_dtypes-cp399.whl", "w") as wheel:
        wheel.writestr(
            "ml_dtypes/_ml_dtypes_ext.cpython-399-x86_64-linux-gnu.so", b"bfloat16 there"
        )
        wheel.writestr("ml_dtypes/_finfo.py", b"not from here")
    plain, more = runtime_files(), runtime_files(tmp_path)
    assert set(more) - set(plain) == {
        "tvm_ffi/core.cpython-399-x86_64-linux-gnu.so",
        "ml_dtypes/_ml_dtypes_ext.cpython-399-x86_64-linux-gnu.so",
    }
    assert {n: p for n, p in more.items() if n in plain} == plain
    assert {"__main__.py", "tvm/lib/libtvm_runtime.so", "tunefarm/measure/serve.py"} <= set(plain)
    assert not any("compiler.so" in name or name.startswith("tunefarm/search") for name in plain)
    assert "tunefarm/measure/cuda/clock.py" in plain
    assert not any("emulator" in name for name in plain)


def _python(report: Report) -> str:
    return dict(report.device.toolchain)["python"]
