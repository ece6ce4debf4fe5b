"""What an earlier job has shipped runs beside what this one has found."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.results.test_journal import make_job
from tests.results.test_shipped import libraries, program_at, shipped
from tunefarm.devices.device import Device
from tunefarm.home import Home
from tunefarm.measure.facts import PREVIOUS, Checked, ColdStart, Compared, InPlace
from tunefarm.measure.gate import Parity
from tunefarm.measure.protocol import Protocol
from tunefarm.results.artifact_file import open_artifact
from tunefarm.results.facts import COLD, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.scheduler import previous as module
from tunefarm.scheduler.finals import Finals
from tunefarm.scheduler.ledger import Ledger
from tunefarm.scheduler.messages import Phase, RunProcess
from tunefarm.scheduler.plausible import Implausible
from tunefarm.scheduler.races import Races

PROTOCOL = Protocol()


@pytest.fixture
def finals(home: Home, device: Device, tmp_path: Path):
    """A job whose model is assembled."""
    journal, job = Journal(home), make_job()
    target = JobTarget("llvm", device.target, device, "tc")
    journal.add_job(job, [target])
    program = program_at(tmp_path / "program")
    libraries(tmp_path / "model", b"new code")
    (tmp_path / "model" / "base.so").write_bytes(b"untuned code")
    (tmp_path / "model" / "base.weights").write_bytes(b"weights")
    yield Finals(home, Races(journal, job, target, program, PROTOCOL, {}), tmp_path)
    journal.close()


def ship(finals: Finals, tmp_path: Path, code: bytes) -> str:
    races = finals.races
    older = dataclasses.replace(make_job(job="net-0"), created=races.job.created - 9.0)
    library = libraries(tmp_path / "older", code)
    return shipped(races.journal, older, races.target, library).digest


def reported(builds: list[str], seconds: dict[str, float]) -> Compared:
    samples = {build: (seconds[build], 1.01 * seconds[build]) for build in builds}
    cold = ColdStart(builds[0], 0.01, 0.02, 100_000_000)
    return Compared(samples, cold, tuple(seconds["tuned"] * (1 + n / 1e3) for n in range(20)))


def compare(
    finals: Finals,
    seconds: dict[str, float],
    processes: range = range(PROTOCOL.model_processes),
) -> None:
    """They have run, and what they report is taken down as a job does it."""
    races = finals.races
    ledger = Ledger(races.journal, races.job, races.target, {})
    for process in processes:
        builds = list(finals.model_request(process).builds())
        ledger.take(RunProcess(Phase.COMPARE, process, "u"), reported(builds, seconds))


def packaged(finals: Finals, tuned: bool = True) -> dict:
    races = finals.races
    races.journal.add_event(
        races.job.id,
        "checked",
        target="llvm",
        tuned=tuned,
        parity=dataclasses.asdict(Parity(0.0, 0.0, True)),
    )
    finals.package_result(1.0)
    return finals.packaged().summary


def test_nothing_shipped_before(finals: Finals) -> None:
    assert finals.find_previous() == ""
    assert finals.model_request(0).previous is None
    compare(finals, {"base": 4e-3, "tuned": 1e-3})
    summary = packaged(finals)
    assert summary["previous"] is None
    assert (summary["verdict"], summary["service"]["load_ms"]) == ("FASTER", 10.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before_s", "verdict"), [(2e-3, "FASTER"), (1e-3, "SAME"), (0.8e-3, "SLOWER")]
)
def test_it_runs_in_the_same_processes(
    finals: Finals, tmp_path: Path, before_s: float, verdict: str
) -> None:
    digest = ship(finals, tmp_path, b"old code")
    assert digest[:12] in finals.find_previous()
    request = finals.model_request(1)
    assert list(request.builds()) == ["tuned", PREVIOUS, "base"]
    assert digest[:12] in request.builds()[PREVIOUS].name, "of two no path is the same"
    assert request.builds()[PREVIOUS].read_bytes() == b"old code"
    compare(finals, {"base": 4e-3, "tuned": 1e-3, PREVIOUS: before_s})
    summary = packaged(finals)
    assert summary["speedup"] == pytest.approx(4.0)
    found = summary["previous"]
    assert (found["digest"], found["job"], found["verdict"]) == (digest, "net-0", verdict)
    assert found["speedup"] == pytest.approx(before_s / 1e-3)
    assert found["speedup_ci95"][0] <= found["speedup"] <= found["speedup_ci95"][1]
    artifact = open_artifact(finals.packaged().path)
    assert artifact.manifest["result"]["previous"] == found
    rows = json.loads(artifact.read("evidence/model.json"))
    assert [row["build"] for row in rows] == ["base", "tuned", PREVIOUS]
    assert all(row["load_ms"] == pytest.approx(10.0) for row in rows), "each was the first in two"
    assert rows[1]["p90_ms"] == pytest.approx(1.0, rel=0.02)
    assert not list((tmp_path / "model").glob("previous*")), "it has had its say"


def test_the_same_bytes_are_not_run_twice(finals: Finals, tmp_path: Path) -> None:
    ship(finals, tmp_path, b"new code")
    assert "to the byte" in finals.find_previous()
    assert finals.model_request(0).previous is None
    compare(finals, {"base": 4e-3, "tuned": 1e-3})
    found = packaged(finals)["previous"]
    assert (found["verdict"], found["speedup"]) == ("SAME", None)


def test_one_that_cannot_be_read_is_told_and_stops_nothing(finals: Finals, tmp_path: Path) -> None:
    ship(finals, tmp_path, b"old code")
    (row,) = finals.races.journal.artifacts("net-0")
    Path(row["path"]).write_bytes(b"cut short")
    assert "not compared with what shipped before" in finals.find_previous()
    compare(finals, {"base": 4e-3, "tuned": 1e-3})
    assert packaged(finals)["previous"] is None


@pytest.mark.parametrize("before_s", [2e-3, 0.06])
def test_one_that_fell_runs_no_more_and_is_not_judged(
    finals: Finals, tmp_path: Path, before_s: float
) -> None:
    """Not even one that is slow: what is slow and untuned is judged without some processes."""
    ship(finals, tmp_path, b"old code")
    finals.find_previous()
    seconds = {"base": 4.0, "tuned": 0.05, PREVIOUS: before_s}
    races = finals.races
    ledger = Ledger(races.journal, races.job, races.target, {})
    for process in range(PROTOCOL.model_processes):
        asked = finals.model_request(process).builds()
        assert (PREVIOUS in asked) == (process <= 4)
        builds = [one for one in asked if one != PREVIOUS or process < 4]
        answer = reported(builds, seconds)
        assert bool(finals.previous.said_of(answer)) == (process == 4), "once"
        ledger.take(RunProcess(Phase.COMPARE, process, "u"), answer)
    summary = packaged(finals)
    assert summary["verdict"] == "FASTER", "of the job's own builds nothing is missing"
    assert (summary["previous"]["verdict"], summary["previous"]["speedup"]) == ("UNMEASURED", None)


def test_a_resumed_job_compares_with_the_same_one(
    finals: Finals, tmp_path: Path, device: Device
) -> None:
    """Whatever has shipped since: the samples on record are of that one."""
    first = ship(finals, tmp_path, b"old code")
    finals.find_previous()
    compare(finals, {"base": 4e-3, "tuned": 1e-3, PREVIOUS: 2e-3}, processes=range(3))
    races = finals.races
    later = dataclasses.replace(make_job(job="net-00"), created=races.job.created - 1.0)
    shipped(races.journal, later, races.target, libraries(tmp_path / "later", b"other code"))
    finals.previous.drop()
    assert first[:12] in finals.find_previous()
    assert finals.model_request(4).builds()[PREVIOUS].read_bytes() == b"old code"
    compare(finals, {"base": 4e-3, "tuned": 1e-3, PREVIOUS: 9e-3})
    found = packaged(finals)["previous"]
    assert found["digest"] == first
    mine = races.samples("model")[PREVIOUS]
    assert [run[0] for _, run in sorted(mine.items())] == [2e-3] * 3 + [9e-3] * 3


def test_two_lives_of_a_process_are_not_paired(finals: Finals, tmp_path: Path) -> None:
    """In the first nothing could be found to run beside it."""
    ship(finals, tmp_path, b"old code")
    compare(finals, {"base": 4e-3, "tuned": 1e-3}, processes=range(1))
    assert "beside it runs" in finals.find_previous()
    ledger = Ledger(finals.races.journal, finals.races.job, finals.races.target, {})
    seconds = {"base": 4e-3, "tuned": 1e-3, PREVIOUS: 2e-3}
    ledger.take(RunProcess(Phase.COMPARE, 0, "u"), reported(list(seconds), seconds))
    assert PREVIOUS not in finals.races.samples("model")
    assert finals.model_request(1).previous is None, "it cannot be judged any more"


def test_the_untuned_build_ships_although_the_tuned_one_is_what_shipped_before(
    finals: Finals, tmp_path: Path
) -> None:
    """Not of the same bytes then: and those have run, as the tuned build."""
    ship(finals, tmp_path, b"new code")
    finals.find_previous()
    compare(finals, {"base": 1e-3, "tuned": 4e-3})
    summary = packaged(finals, tuned=False)
    assert (summary["verdict"], summary["speedup"], summary["speedup_ci95"]) == ("SAME", 1, [1, 1])
    assert summary["tuned_ms"] == summary["baseline_ms"] == pytest.approx(1.0, rel=0.01)
    assert summary["why_untuned"].startswith("the tuned model is slower: 0.25x (0.2")
    assert open_artifact(finals.packaged().path).manifest["why_untuned"] == summary["why_untuned"]
    (row,) = [v for k, v in finals.races.journal.verdicts("net-1", "llvm").items() if k == "model"]
    assert row["verdict"] == "SLOWER", "what was measured stays on record"
    found = summary["previous"]
    assert (found["verdict"], found["speedup"]) == ("FASTER", pytest.approx(4.0))


def test_of_a_tuned_model_that_computes_something_else_no_speed_is_told(
    finals: Finals, tmp_path: Path
) -> None:
    finals.find_previous()
    compare(finals, {"base": 4e-3, "tuned": 1e-3})
    base, tuned = (tmp_path / "model" / f"{build}.so" for build in ("base", "tuned"))
    assert finals.check_request().libraries == (tuned, base)
    right, wrong = Parity(1e-9, 1e-8, True), Parity(0.1, 0.5, False)
    finals.note_checked(Checked(base, right, None, wrong))
    said = finals.package_result(1.0)
    summary = finals.packaged().summary
    assert "computes something else" in said
    assert "5.0e-01" in said
    assert summary["why_untuned"] == said
    assert (summary["verdict"], summary["speedup"]) == ("SAME", 1.0)
    assert summary["parity"]["max_rel_err"] == 1e-8, "of what ships"


def test_how_far_a_tuned_model_was_off_may_not_be_known(finals: Finals) -> None:
    """An older tunefarm's runtime at the lab does not tell."""
    compare(finals, {"base": 4e-3, "tuned": 1e-3})
    summary = packaged(finals, tuned=False)
    assert summary["why_untuned"] == "the tuned model computes something else than the model"


@pytest.mark.parametrize(
    "answer",
    [
        Checked(Path("m.so"), Parity(0.0, float("nan"), True), None),
        Checked(Path("m.so"), Parity(float("inf"), 0.0, True), None),
        *(
            Checked(Path("m.so"), Parity(0.0, 0.0, True), InPlace(model_s, {"f": inside}, outside))
            for model_s, inside, outside in (
                (0.0, 1e-3, 0.1),
                (1e-3, float("nan"), 0.1),
                (1e-3, -1e-3, 0.1),
                (1e-3, 1e-3, float("nan")),
            )
        ),
    ],
)
def test_a_check_that_cannot_be_true_is_not_noted(finals: Finals, answer: Checked) -> None:
    with pytest.raises(Implausible):
        finals.note_checked(answer)
    assert {e["kind"] for e in finals.races.journal.events("net-1")} == {"queued"}


def test_nothing_depends_on_it(
    finals: Finals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(finals, tmp_path, b"old code")

    def without_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(module, "lay_out", without_memory)
    assert finals.find_previous() == "not compared with what shipped before: MemoryError"
    assert finals.model_request(0).previous is None


def test_what_cannot_be_true_is_not_taken_down(finals: Finals) -> None:
    races = finals.races
    ledger = Ledger(races.journal, races.job, races.target, {})
    good = Compared({"tuned": (1e-3,)}, ColdStart("tuned", 0.01, 0.02, 9), (1e-3,))
    for wrong in (
        dataclasses.replace(good, cold=dataclasses.replace(good.cold, load_s=-1.0)),
        dataclasses.replace(good, cold=dataclasses.replace(good.cold, first_s=float("nan"))),
        dataclasses.replace(good, tail=(1e-3, 1e9)),
        dataclasses.replace(good, samples={"tuned": ()}),
        dataclasses.replace(good, samples={"tuned": (1e-3,), "stranger": (1e-3,)}),
        dataclasses.replace(good, samples={"base": (1e-3,)}),
        dataclasses.replace(good, cold=dataclasses.replace(good.cold, peak_bytes=10**400)),
        dataclasses.replace(good, cold=dataclasses.replace(good.cold, peak_bytes=-1)),
    ):
        with pytest.raises(Implausible):
            ledger.take(RunProcess(Phase.COMPARE, 0, "u"), wrong)
    assert races.journal.measurements(races.job.id, "llvm") == []
    assert [e for e in races.journal.events(races.job.id) if e["kind"] == COLD] == []
