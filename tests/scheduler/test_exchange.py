"""Units that are reached by file, with a simulated device at the other end."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import PROTOCOL
from tests.simulated import SimulatedDevice
from tunefarm.devices.device import Device
from tunefarm.devices.target import make_target
from tunefarm.errors import (
    ArtifactError,
    ArtifactTampered,
    Failure,
    FailureKind,
    NoDevice,
    StoreError,
    UnknownJob,
)
from tunefarm.frontend.program import TensorSpec
from tunefarm.home import Home
from tunefarm.measure.build import Library
from tunefarm.measure.bundles.bundle import read_bundle, read_report, report_of, write_report
from tunefarm.measure.bundles.run import run_bundle
from tunefarm.measure.facts import KernelFacts, Raced
from tunefarm.measure.requests import RaceRequest, ScreenRequest
from tunefarm.process import ChildDied
from tunefarm.scheduler.crew import Answered, Raised
from tunefarm.scheduler.exchange import (
    Exchange,
    accept,
    await_device,
    device_of,
    waiting_for,
)
from tunefarm.scheduler.messages import Assignment, Joined, Lease, Phase, RunProcess, Screen

X = (TensorSpec("x", (4,), "float32"), TensorSpec("y", (4,), "float32"))
TARGET = make_target("cuda", {"arch": "sm_90"})


class Lab:
    """A job's end, and the laboratory's."""

    def __init__(self, place: Path, device: Device) -> None:
        self.home = Home(place / "home").prepare()
        self.root = self.home.job_dir("job-1")
        self.directory = place / "carried"
        self.directory.mkdir()
        self.device = replace(device, target=TARGET, sku="Paper GPU")
        self.said: list[str] = []
        self.given = 0
        self.begin()

    def begin(self, size: int = 4) -> None:
        """A life of the job."""
        self.exchange = Exchange(
            self.directory,
            self.root,
            TARGET,
            self.device,
            self.said.append,
            size=size,
        )
        self.joined = [one.unit for one in self.exchange.hear(False) if isinstance(one, Joined)]

    def request(self, name: str, untuned: bool = False) -> ScreenRequest:
        facts = KernelFacts("a" * 16, X, 8.0, self.root / "reference" / "a.npz", (), 12)
        library = Library(self.root / "candidates" / f"{name}.so", ())
        library.path.parent.mkdir(parents=True, exist_ok=True)
        library.path.write_bytes(b"a library")
        return ScreenRequest(library, facts, PROTOCOL, None, untuned)

    def ask(self, name: str, untuned: bool = False, incumbent_s: float | None = None) -> Lease:
        lease = Lease(1, self.given)
        unit = self.joined[self.given % len(self.joined)]
        self.given += 1
        request = replace(self.request(name, untuned), incumbent_s=incumbent_s)
        self.exchange.give(Assignment(lease, Screen(name, incumbent_s, unit)), request)
        return lease

    def bundles(self) -> list[Path]:
        return sorted(self.directory.glob("*.bundle"))

    def measure(self, bundle: Path, device: Device | None = None, runner=None) -> None:
        runner = runner or SimulatedDevice()
        run_bundle(bundle, report_of(bundle), lambda text: None, device or self.device, runner)

    def answers(self, more: bool = False) -> dict[Lease, object]:
        return {h.lease: h.answer for h in self.exchange.hear(more) if isinstance(h, Answered)}


@pytest.fixture
def lab(tmp_path: Path, device: Device) -> Lab:
    return Lab(tmp_path, device)


def test_a_round_goes_out_and_comes_back(lab: Lab) -> None:
    assert len(set(lab.joined)) == 4
    assert {device_of(unit) for unit in lab.joined} == {lab.device.id}
    leases = [lab.ask("untuned", untuned=True), lab.ask("b")]
    assert lab.answers() == {}
    (bundle,) = lab.bundles()
    assert "python" in lab.said[-1]
    assert len(read_bundle(bundle).requests) == 2
    assert waiting_for(lab.root) == [bundle]
    lab.measure(bundle)
    answers = lab.answers()
    assert set(answers) == set(leases)
    (first, block), (second, none) = (answers[lease] for lease in leases)
    assert first.screening.samples == second.screening.samples == (0.5, 0.25, 0.5)
    assert block.canary_s == 0.001
    assert none is None
    assert (lab.root / "reference" / "a.npz").read_bytes() == b"a reference"
    assert not bundle.exists()
    assert report_of(bundle).exists()
    assert waiting_for(lab.root) == []


def test_what_fills_a_bundle_does_not_wait_for_more(lab: Lab) -> None:
    for name in ("a", "b", "c"):
        lab.ask(name, untuned=True)
    assert lab.answers(more=True) == {}
    assert lab.bundles() == []
    lab.ask("d", untuned=True)
    assert lab.answers(more=True) == {}
    assert len(read_bundle(lab.bundles()[0]).requests) == 4


def test_what_was_interrupted_goes_out_again(lab: Lab) -> None:
    class Interrupted(SimulatedDevice):
        def screen(self, request):
            if self.asked:
                raise KeyboardInterrupt
            return super().screen(request)

    first, second = lab.ask("a", untuned=True), lab.ask("b", untuned=True)
    lab.answers()
    lab.measure(lab.bundles()[0], runner=Interrupted())
    assert set(lab.answers(more=True)) == {first}
    lab.exchange.hear(False)
    (again,) = lab.bundles()
    assert len(read_bundle(again).requests) == 1
    lab.measure(again)
    assert set(lab.answers()) == {second}


def test_a_later_life_takes_what_came_meanwhile(lab: Lab) -> None:
    lab.ask("a", untuned=True)
    lab.ask("b", untuned=True)
    lab.answers()
    (bundle,) = lab.bundles()
    lab.begin()
    lab.measure(bundle)
    again = lab.ask("a", untuned=True, incumbent_s=0.1)  # by now something faster is known
    assert set(lab.answers()) == {again}
    other = lab.ask("c", untuned=True)
    lab.answers()
    assert len(lab.bundles()) == 1
    assert len(read_bundle(lab.bundles()[0]).requests) == 1, "b is asked again, nobody wants it"
    lab.measure(lab.bundles()[0])
    assert set(lab.answers()) == {other}


def test_a_later_life_waits_for_what_is_out(lab: Lab) -> None:
    lab.ask("a", untuned=True)
    lab.answers()
    (bundle,) = lab.bundles()
    lab.begin()
    again = lab.ask("a", untuned=True)
    assert lab.answers() == {}
    assert lab.bundles() == [bundle]
    lab.measure(bundle)
    assert set(lab.answers()) == {again}


def test_a_bundle_that_is_lost_is_sent_again(lab: Lab) -> None:
    lab.ask("a", untuned=True)
    lab.answers()
    (first,) = lab.bundles()
    carried = first.read_bytes()
    first.unlink()
    lab.begin()
    again = lab.ask("a", untuned=True)
    lab.answers()
    assert len(lab.bundles()) == 1
    # It was not lost, only elsewhere: its report counts, and nobody needs the other one's.
    first.write_bytes(carried)
    lab.measure(first)
    assert set(lab.answers()) == {again}


def test_where_bundles_go_is_not_made_up(lab: Lab) -> None:
    lab.directory.rmdir()
    lab.ask("a", untuned=True)
    with pytest.raises(StoreError, match="is not there"):
        lab.answers()


def test_a_process_that_falls_ends_the_job_in_words(lab: Lab) -> None:
    lease = Lease(1, 77)
    request = RaceRequest((), PROTOCOL, 2, 0)
    lab.exchange.give(Assignment(lease, RunProcess(Phase.RACE, 0, lab.joined[0])), request)
    lab.exchange.hear(False)

    class Falls(SimulatedDevice):
        def race(self, request):
            raise ChildDied(-11, "")

    lab.measure(lab.bundles()[0], runner=Falls())
    (one,) = lab.exchange.hear(False)
    assert isinstance(one, Raised)
    assert "SIGSEGV" in str(one.error)


def test_a_report_of_another_device_is_refused(lab: Lab) -> None:
    lease = lab.ask("a", untuned=True)
    lab.answers()
    (bundle,) = lab.bundles()
    other = replace(lab.device, sku="Another GPU")
    lab.measure(bundle)
    genuine = report_of(bundle).read_bytes()
    found = read_report(report_of(bundle), lab.root)
    write_report(report_of(bundle), replace(found, device=other), lab.root)
    assert lab.answers() == {}
    assert "Another GPU" in lab.said[-1]
    assert not report_of(bundle).exists()
    report_of(bundle).write_bytes(b"not a report")
    said = len(lab.said)
    assert lab.answers() == {}
    assert len(lab.said) == said, "it may be on its way still"
    os.utime(report_of(bundle), (0, 0))
    assert lab.answers() == {}
    assert "refused" in lab.said[-1]
    strange = replace(found, answers={0: {"task": {}}})
    write_report(report_of(bundle), strange, lab.root)
    assert lab.answers() == {}
    assert "answer 0 is none" in lab.said[-1]
    nosy = replace(found, files={**found.files, "cuda/prepack-0.so": b"surprise"})
    write_report(report_of(bundle), nosy, lab.root)
    assert lab.answers() == {}
    assert "nobody has asked for cuda/prepack-0.so" in lab.said[-1]
    assert not (lab.root / "cuda" / "prepack-0.so").exists()
    report_of(bundle).write_bytes(genuine)
    assert set(lab.answers()) == {lease}


def test_two_targets_of_a_kind_keep_apart(lab: Lab) -> None:
    lab.ask("a", untuned=True)
    lab.answers()
    lab.measure(lab.bundles()[0])
    first = lab.exchange
    lab.exchange = Exchange(
        lab.directory,
        lab.root,
        make_target("cuda", {"arch": "sm_80"}),
        replace(lab.device, target=make_target("cuda", {"arch": "sm_80"})),
        lab.said.append,
        size=4,
    )
    assert lab.answers() == {}
    assert not any("refused" in line for line in lab.said)
    lab.exchange = first
    assert len(lab.answers()) == 1


RACED = Raced(
    {"task": {"c": (0.1, 0.2)}}, {"d": Failure(FailureKind.RUN_TIMEOUT, "no result within 60 s")}
)


def test_processes_travel_like_candidates(lab: Lab) -> None:
    request = RaceRequest((), PROTOCOL, 2, 0)
    lease = Lease(1, 77)
    lab.exchange.give(Assignment(lease, RunProcess(Phase.RACE, 0, lab.joined[0])), request)
    lab.answers()

    class Racing(SimulatedDevice):
        def race(self, request):
            return RACED

    lab.measure(lab.bundles()[0], runner=Racing())
    assert lab.answers() == {lease: RACED}


def test_a_report_from_elsewhere_is_handed_to_its_job(lab: Lab, tmp_path: Path) -> None:
    lease = lab.ask("a", untuned=True)
    lab.answers()
    (bundle,) = lab.bundles()
    stick = tmp_path / "stick.report"
    run_bundle(bundle, stick, lambda text: None, lab.device, SimulatedDevice())
    assert accept(lab.home, stick) == ("job-1", 1)
    assert set(lab.answers()) == {lease}
    with pytest.raises(UnknownJob, match="no job of this farm home"):
        accept(Home(tmp_path / "other").prepare(), stick)
    stick.write_bytes(b"not a report")
    with pytest.raises(ArtifactTampered):
        accept(lab.home, stick)


def test_what_the_job_would_refuse_is_not_accepted(lab: Lab, tmp_path: Path) -> None:
    """Nor a report in the place of one that says more."""
    for name in "ab":
        lab.ask(name, untuned=True)
    lab.answers()
    (bundle,) = lab.bundles()
    whole, other, less = (tmp_path / f"{name}.report" for name in ("whole", "other", "less"))
    run_bundle(bundle, whole, lambda text: None, lab.device, SimulatedDevice())
    found = read_report(whole, tmp_path)
    write_report(other, replace(found, device=replace(lab.device, sku="Another GPU")), tmp_path)
    with pytest.raises(ArtifactTampered, match="of Another GPU"):
        accept(lab.home, other)
    write_report(other, replace(found, answers={7: found.answers[0]}), tmp_path)
    with pytest.raises(ArtifactTampered, match="its answer 7 is none"):
        accept(lab.home, other)
    write_report(less, replace(found, answers={0: found.answers[0]}), tmp_path)
    assert accept(lab.home, less) == ("job-1", 1)
    for _ in range(2):
        assert accept(lab.home, whole) == ("job-1", 2)
    with pytest.raises(ArtifactError, match="has 2 answers, this report 1"):
        accept(lab.home, less)
    assert report_of(bundle).read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_a_device_is_known_by_its_report(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def carried(text: str) -> None:
        said.append(text)
        if "waiting" in text:
            lab.measure(lab.bundles()[0])

    assert await_device(lab.directory, TARGET, carried) == lab.device
    assert "python probe-sm_90-" in said[0]
    assert await_device(lab.directory, TARGET, said.append) == lab.device, "asked again"
    other = make_target("cuda", {"arch": "sm_80"})

    def carried_elsewhere(text: str) -> None:
        if "waiting" in text:
            run_bundle(
                lab.bundles()[0],
                report_of(lab.bundles()[0]),
                lambda text: None,
                replace(lab.device, target=other),
                SimulatedDevice(),
            )
            found = read_report(report_of(lab.bundles()[0]), lab.root)
            write_report(report_of(lab.bundles()[0]), replace(found, device=lab.device), lab.root)

    with pytest.raises(NoDevice, match="sm_80"):
        await_device(lab.directory, other, carried_elsewhere)
