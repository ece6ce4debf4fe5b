"""Jobs whose devices no network leads to: real bundles, a real processor, and a GPU on paper."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests import models
from tests.bench import PROTOCOL
from tests.command import Done, tunefarm
from tests.cuda import needs_compiler
from tests.simulated import SimulatedDevice
from tunefarm.devices.device import Device
from tunefarm.devices.gpu import completed
from tunefarm.devices.target import parse_target
from tunefarm.home import Home
from tunefarm.measure.build import Library
from tunefarm.measure.bundles.bundle import read_bundle, report_of
from tunefarm.measure.bundles.run import run_bundle
from tunefarm.measure.facts import (
    Checked,
    ColdStart,
    Compared,
    KernelFacts,
    Raced,
    Screening,
    ScreenOutcome,
)
from tunefarm.measure.gate import Parity
from tunefarm.measure.requests import ScreenRequest
from tunefarm.results.artifact_file import open_artifact
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.scheduler.exchange import Exchange
from tunefarm.scheduler.messages import Assignment, Lease, Screen

pytestmark = pytest.mark.tvm  # it starts Ray too, but nothing here is timed
GPU = "cuda:arch=sm_90"


class SimulatedGpu(SimulatedDevice):
    """Times by the digest of what would run; the untuned one is slow. It computes nothing: what it
    says of results is on paper as well."""

    def screen(self, request) -> ScreenOutcome:
        content = request.library.path.read_bytes()
        assert b"\x7fELF" in content[64:], "no machine code for the GPU"
        if request.make_reference:
            request.facts.reference.parent.mkdir(parents=True, exist_ok=True)
            request.facts.reference.write_bytes(b"a reference")
        assert request.facts.reference.exists()
        return ScreenOutcome(Screening(self._times(content, request.make_reference), False), None)

    def _times(self, content: bytes, untuned: bool) -> tuple[float, ...]:
        seconds = 1e-3 if untuned else 1e-4 * (1 + sum(content) % 97 / 97)
        return seconds, seconds * 1.01, seconds * 0.99

    def race(self, request) -> Raced:
        samples = {
            facts.task: {
                name: self._times(library.path.read_bytes(), number == 0)
                for number, (name, library) in enumerate(entries)
            }
            for facts, entries in request.kernels
        }
        return Raced(samples, {})

    def place(self, request) -> list[dict[str, list[float]]]:
        return []

    def model(self, request) -> Compared:
        assert b"\x7fELF" in request.tuned.read_bytes()[64:]
        samples = {"base": (2e-3, 2.01e-3, 1.99e-3), "tuned": (1e-3, 1.01e-3, 0.99e-3)}
        return Compared(samples, ColdStart("tuned", 0.01, 0.02, 9), samples["tuned"])

    def check(self, request) -> Checked:
        return Checked(request.libraries[0], Parity(0.0, 0.0, True), None)


@contextmanager
def carried(directory: Path, device: Device) -> Iterator[dict[str, list[int]]]:
    """Somebody who carries bundles to the GPU, and brings the reports back: how many measurements
    each had, by job (or probe)."""
    over, found = threading.Event(), defaultdict[str, list[int]](list)
    gpu = replace(device, target=completed(parse_target(GPU)), sku="Paper GPU", id="paper-gpu")

    def carry() -> None:
        while not over.wait(0.2):
            for bundle in directory.glob("[!.]*.bundle"):
                if not report_of(bundle).exists():
                    read = read_bundle(bundle)
                    found[read.job].append(len(read.requests))
                    run_bundle(bundle, report_of(bundle), lambda _: None, gpu, SimulatedGpu())

    thread = threading.Thread(target=carry)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def look_at(done: Done, bundles: dict[str, list[int]], home: Path, trials: int) -> None:
    """What such a job has come to, on record and in its artifact."""
    row, job = done.json["targets"][GPU], done.json["job"]
    assert row["verdict"] == "FASTER"
    assert row["speedup"] == pytest.approx(2.0, rel=0.05)
    assert row["candidates"] == trials
    assert len(bundles[job]) >= 5, "candidates, race, held-out runs, the model, its check"
    assert max(bundles[job]) == 8, "as many in each as was asked for"
    journal = Journal(Home(home))
    assert {one.unit for one in journal.measurements(job, GPU)} == {"paper-gpu"}
    taken = journal.resources(job, GPU)
    assert len(taken) >= trials
    assert all(one.registers > 0 for of in taken.values() for one in of)
    (target,) = journal.targets(job)
    assert target.device.sku == "Paper GPU"
    assert "nvcc" in target.toolchain or "nvrtc" in target.toolchain
    journal.close()
    manifest = open_artifact(Path(row["artifact"])).manifest
    assert manifest["requires"]["gpu"]["arch"] == "sm_90"


@pytest.mark.long
@needs_compiler
def test_a_gpu_that_no_network_leads_to(tmp_path: Path, device: Device) -> None:
    env = {"TUNEFARM_HOME": str(tmp_path / "home"), "TUNEFARM_CACHE": str(tmp_path / "cache")}
    model = models.single_matmul(tmp_path / "matmul.onnx", 96)
    lab = tmp_path / "lab"
    with carried(lab, device) as bundles:
        done = tunefarm(
            *(
                "submit",
                model,
                "--targets",
                GPU,
                "--trials",
                10,
                "--measure-by-bundle",
                lab,
                "--per-bundle",
                8,
                "--json",
            ),
            **env,
        )
    assert done.code == 0, done.err[-3000:]
    look_at(done, bundles, tmp_path / "home", 10)


def test_bundles_and_reports_are_carried_by_hand(
    tmp_path: Path, home: Home, device: Device
) -> None:
    """What a job waits for is copied to a stick, measured, and its report handed in."""
    gpu = replace(device, target=completed(parse_target(GPU)), sku="Paper GPU", id="paper-gpu")
    lab, stick = tmp_path / "lab", tmp_path / "stick"
    lab.mkdir()
    journal = Journal(home)
    for name, exchange in (("by-file-1", str(lab)), ("plain-1", None)):
        options = {"exchange": exchange, "skipped": {}, "tracking_uri": ""}
        job = Job(name, name, 1.7e9, "0" * 64, "net.onnx", options, PROTOCOL.to_dict())
        journal.add_job(job, [JobTarget(GPU, gpu.target, gpu, "tc")])
    journal.close()
    root = home.job_dir("by-file-1")
    exchange = Exchange(lab, root, gpu.target, gpu, lambda text: None)
    unit = exchange.hear(False)[0].unit
    library = Library(root / "k.so", ())
    library.path.parent.mkdir(parents=True)
    library.path.write_bytes(b"a library")
    facts = KernelFacts("a" * 16, (), 1.0, root / "k.npz")
    request = ScreenRequest(library, facts, PROTOCOL, None, True)
    exchange.give(Assignment(Lease(1, 0), Screen("k", None, unit)), request)
    exchange.hear(False)
    copied = tunefarm("measure", "export", "by-file-1", stick, "--json").json
    (bundle,) = map(Path, copied["bundles"])
    assert bundle.parent == stick
    run_bundle(bundle, report_of(bundle), lambda text: None, gpu, SimulatedDevice())
    taken = tunefarm("measure", "import", report_of(bundle), "--json").json
    assert taken == {"job": "by-file-1", "answers": 1, "running": False}
    assert len(exchange.hear(False)) == 1
    assert tunefarm("measure", "export", "by-file-1", stick, "--json").json["bundles"] == []
    assert tunefarm("measure", "export", "plain-1", stick).code == 2
    assert tunefarm("measure", "import", library.path).code == 6
    refused = tunefarm("measure", "run", bundle)
    assert refused.code == 4, "there is no such device here"
    assert "cuda" in refused.err


def test_options_that_do_not_go_together_are_refused(tmp_path: Path, home: Home) -> None:
    model = models.single_matmul(tmp_path / "matmul.onnx", 16)
    for options in (
        ("--measure-by-bundle", tmp_path / "lab"),
        ("--measure-by-bundle", tmp_path / "lab", "--trials", 3, "--budget", "5m"),
        ("--measure-by-bundle", tmp_path / "lab", "--trials", 3, "--farm", "http://host:1"),
    ):
        done = tunefarm("submit", model, *options)
        assert done.code == 2
        assert "--measure-by-bundle" in done.err
    done = tunefarm("submit", model, "--per-bundle", 100)
    assert (done.code, "--measure-by-bundle alone" in done.err) == (2, True)
    done = tunefarm("submit", model, "--targets", "cuda:arch=sm_11", "--no-device", "build")
    assert done.code == 4
    assert "no architecture 'sm_11' is known" in done.err
    done = tunefarm("submit", model, "--targets", "cuda", "--no-device", "build")
    assert done.code == 4
    assert "names no architecture" in done.err
    assert not (tmp_path / "lab").exists()
