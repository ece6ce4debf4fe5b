"""Close calls of the race: who is measured inside the model, and what that decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.results.test_journal import make_job
from tunefarm.devices.device import Device
from tunefarm.errors import Failure, FailureKind
from tunefarm.frontend.program import Program, TensorSpec, TuningTask
from tunefarm.home import Home
from tunefarm.measure.build import Library
from tunefarm.measure.protocol import Protocol
from tunefarm.results.facts import JobTarget, Measurement
from tunefarm.results.journal import Journal
from tunefarm.scheduler.finals import Finals
from tunefarm.scheduler.ledger import Ledger
from tunefarm.scheduler.messages import BudgetSpent, Imported, Phase, Screened, Task
from tunefarm.scheduler.plausible import Implausible
from tunefarm.scheduler.races import Races
from tunefarm.scheduler.requests import Requests
from tunefarm.scheduler.state import Limits, TargetState
from tunefarm.search.candidate import Candidate, baseline

PROTOCOL = Protocol()
SPEC = TensorSpec("x", (4,), "float32")


@pytest.fixture
def finals(home: Home, device: Device, tmp_path: Path):
    """Two kernels, the first one called by two functions; each with three candidates."""
    journal, job = Journal(home), make_job()
    target = JobTarget("llvm", device.target, device, "tc")
    journal.add_job(job, [target])
    tasks = (
        TuningTask("a", "conv", ("conv", "conv1"), 2, 1.0, 1, (SPEC,)),
        TuningTask("b", "dense", ("dense",), 1, 1.0, 1, (SPEC,)),
    )
    program = Program(tmp_path / "program", (SPEC,), (SPEC,), tasks, {"parameter_bytes": 1})
    journal.add_tasks(job.id, "llvm", tasks)
    made = [baseline(task.id, device.target.text, "tc") for task in tasks]
    made += [
        Candidate(task.id, device.target.text, "tc", f"[[],[{n}]]", "random")
        for task in tasks
        for n in range(3)
    ]
    by_id = {one.id: one for one in made}
    yield Finals(home, Races(journal, job, target, program, PROTOCOL, by_id), tmp_path)
    journal.close()


def proposed(finals: Finals, task: str) -> list[str]:
    return [c.id for c in finals.races.candidates.values() if c.task == task and not c.untuned]


def run(finals: Finals, stage: Phase, seconds: dict[str, float], processes: int) -> None:
    for process in range(processes):
        rows = [Measurement(c, stage.value, process, (s, s)) for c, s in seconds.items()]
        finals.races.journal.add_process("net-1", "llvm", stage.value, process, rows)


def raced(finals: Finals) -> tuple[list[str], list[str]]:
    """Of the first kernel two are close, of the second none."""
    a, b = proposed(finals, "a"), proposed(finals, "b")
    seconds = {a[0]: 1.05, a[1]: 1.0, a[2]: 1.2, b[0]: 1.0, b[1]: 1.2, b[2]: 1.3}
    run(finals, Phase.RACE, seconds, PROTOCOL.race_processes)
    return a, b


@pytest.mark.parametrize(
    "found",
    [
        [{"conv": [1.0]}],
        [{"conv": [1.0]}] * 3,
        [{"conv": [1.0], "conv1": [1.0, 2.0]}, {"conv": [1.0], "conv1": [1.0]}],
        [{"conv": [1.0]}, {"conv": []}],
    ],
)
def test_variants_that_did_not_run_together_are_not_believed(finals: Finals, found: Any) -> None:
    with pytest.raises(Implausible):
        finals.races.placed(found)


def test_without_a_close_call_nothing_is_placed(finals: Finals) -> None:
    a, b = proposed(finals, "a"), proposed(finals, "b")
    run(finals, Phase.RACE, {a[0]: 1.0, a[1]: 1.2, b[0]: 1.0}, PROTOCOL.race_processes)
    assert finals.races.variants() == ()
    assert finals.variant_requests() == []
    assert finals.place_request(0) is None
    assert finals.races.placed([]) == {}
    assert finals.races.winners() == {"a": a[0], "b": b[0]}


def test_close_calls_differ_between_the_variants(finals: Finals) -> None:
    a, b = raced(finals)
    assert finals.races.variants() == ({"a": a[1], "b": b[0]}, {"a": a[0], "b": b[0]})
    requests = finals.variant_requests()
    assert [dict(r.traces)["conv1"] for r in requests] == [
        finals.races.candidates[a[1]].trace,
        finals.races.candidates[a[0]].trace,
    ]
    assert finals.place_request(0) is None, "they are not compiled"
    for request in requests:
        request.library.parent.mkdir(parents=True, exist_ok=True)
        request.library.touch()
    placing = finals.place_request(1)
    assert placing is not None
    assert placing.variants == tuple(r.library for r in requests)
    finals.drop_variants()
    assert finals.place_request(1) is None
    assert list(requests[0].library.parent.iterdir()) == []


def test_functions_of_a_kernel_are_one_and_its_seconds_are_of_a_call(finals: Finals) -> None:
    """Whatever the library calls them: with packed weights, or as parts of a whole."""
    a, _ = raced(finals)
    found = [
        {"conv_prepacked": [2.0, 3.0], "conv1__part0_of_8": [4.0, 5.0], "dense": [9.0, 9.0]},
        {"conv_prepacked": [1.0, 1.0], "conv1": [1.0, 2.0], "vm.builtin.reshape": [0.1, 0.1]},
    ]
    assert finals.races.placed(found) == {"a": {a[1]: [3.0, 4.0], a[0]: [1.0, 1.5]}}
    assert finals.races.placed([{"dense": [1.0]}, {"dense": [1.0]}]) == {}, "it was not called"


def test_the_model_decides_what_is_close(finals: Finals) -> None:
    a, b = raced(finals)
    assert finals.races.winners() == {"a": a[1], "b": b[0]}
    assert finals.races.overturned() == (0, 0)
    run(finals, Phase.PLACE, {a[1]: 1.0, a[0]: 0.9}, PROTOCOL.place_processes)
    assert finals.races.winners() == {"a": a[0], "b": b[0]}
    assert finals.races.overturned() == (1, 1)


def test_a_runner_up_must_be_faster_every_time(finals: Finals) -> None:
    a, _ = raced(finals)
    for process in range(PROTOCOL.place_processes):
        seconds = {a[1]: 1.0, a[0]: 1.1 if process == 1 else 0.5}
        rows = [Measurement(c, "place", process, (s,)) for c, s in seconds.items()]
        finals.races.journal.add_process("net-1", "llvm", "place", process, rows)
    assert finals.races.winners()["a"] == a[1]
    assert finals.races.overturned() == (1, 0)


def test_a_runner_up_that_lacks_a_process_cannot_win(finals: Finals) -> None:
    a, _ = raced(finals)
    run(finals, Phase.PLACE, {a[1]: 1.0}, PROTOCOL.place_processes)
    rows = [Measurement(a[0], "place", 0, (0.9,))]
    finals.races.journal.add_measurements("net-1", "llvm", rows)
    assert finals.races.winners()["a"] == a[1]


def test_the_untuned_are_called_until_it_is_clear(finals: Finals) -> None:
    """Slow and far behind in three processes: the others do without, kernel and model."""
    a, b = raced(finals)
    races = finals.races
    bases = {c.task: c.id for c in races.candidates.values() if c.untuned}
    screened = dict.fromkeys(bases.values(), 1.0)
    both = {"a": [bases["a"], a[1]], "b": [bases["b"], b[0]]}
    samples = {bases["a"]: 4.0, a[1]: 0.01, bases["b"]: 0.02, b[0]: 0.001}
    for process in range(PROTOCOL.slow_processes):
        assert races.entries(Phase.FINAL, screened) == both
        assert finals.model_request(process).base is not None
        rows = [Measurement(c, "final", process, (s, s)) for c, s in samples.items()]
        races.journal.add_process("net-1", "llvm", "final", process, rows)
        rows = [Measurement(c, "model", process, (s,)) for c, s in (("base", 4.0), ("tuned", 0.1))]
        races.journal.add_process("net-1", "llvm", "compare", process, rows)
    assert races.entries(Phase.FINAL, screened) == {**both, "a": [a[1]]}, "the other one is quick"
    for process in range(PROTOCOL.slow_processes, PROTOCOL.final_processes):
        request = finals.model_request(process)
        assert (request.base, request.tuned.name) == (None, "tuned.so")
        chosen = (a[1], bases["b"], b[0])
        rows = [Measurement(c, "final", process, (samples[c],)) for c in chosen]
        races.journal.add_process("net-1", "llvm", "final", process, rows)
        races.journal.add_process(
            "net-1", "llvm", "compare", process, [Measurement("tuned", "model", process, (0.1,))]
        )
    assert races.decide_kernels() == []
    verdicts = races.journal.verdicts("net-1", "llvm")
    assert {v["verdict"] for v in verdicts.values()} == {"FASTER"}
    assert verdicts["a"]["speedup"] == pytest.approx(400)
    assert finals.check_request().libraries[0].name == "tuned.so", "it ships"
    state = restored(finals)
    assert state.phase is Phase.ASSEMBLE, "who was spared is not missed after a crash"


def test_a_kernel_whose_final_has_failed_is_told(finals: Finals) -> None:
    raced(finals)
    assert finals.races.decide_kernels() == ["a", "b"]


def test_what_can_no_longer_be_built_does_not_race(finals: Finals, tmp_path: Path) -> None:
    """The next best does; a kernel of which the untuned schedule is gone has no final."""
    races = finals.races
    ledger = Ledger(races.journal, races.job, races.target, races.candidates)
    requests = Requests(ledger, races, tmp_path)
    bases = {c.task: c.id for c in races.candidates.values() if c.untuned}
    a, b = raced(finals)
    ledger.latencies.update(dict.fromkeys([*bases.values(), *a, *b], 1.0))
    racers = requests.racers(Phase.RACE)
    assert sorted(racers["a"]) == sorted(a)
    assert requests.unbuilt(racers).keys() == {*a, *b}
    ledger.libraries.update(dict.fromkeys([*a[1:], *b], Library(tmp_path / "k.so", (), None)))
    ledger.drop(a[0])
    racers = requests.racers(Phase.RACE)
    assert sorted(racers["a"]) == sorted(a[1:])
    assert requests.unbuilt(racers) == {}
    entrants = {facts.task: [c for c, _ in chosen] for facts, chosen in raced_by(requests, racers)}
    assert entrants == racers
    ledger.libraries[bases["a"]] = ledger.libraries[a[1]]
    ledger.drop(bases["b"])
    racers = requests.racers(Phase.FINAL)
    request = requests.race(racers, Phase.FINAL, 0)
    assert [facts.task for facts, _ in request.kernels] == ["a"]


def raced_by(requests: Requests, racers: dict[str, list[str]]):
    return requests.race(racers, Phase.RACE, 0).kernels


def test_a_model_that_is_quick_is_called_by_all(finals: Finals) -> None:
    raced(finals)
    for process in range(PROTOCOL.model_processes):
        assert finals.model_request(process).base is not None
        rows = [Measurement(c, "model", process, (s,)) for c, s in (("base", 0.5), ("tuned", 0.1))]
        finals.races.journal.add_process("net-1", "llvm", "compare", process, rows)


def test_an_untuned_kernel_that_too_few_have_called_is_called_again(finals: Finals) -> None:
    """Of three that called it, one has lost what it measured."""
    a, b = raced(finals)
    bases = {c.task: c.id for c in finals.races.candidates.values() if c.untuned}
    for process in range(PROTOCOL.final_processes):
        chosen = [a[1], bases["b"], b[0], *([bases["a"]] if process < 2 else [])]
        rows = [Measurement(c, "final", process, (1.0,)) for c in chosen]
        finals.races.journal.add_process("net-1", "llvm", "final", process, rows)
    state = restored(finals)
    assert state.phase is Phase.FINAL
    assert state.reported == {0, 1}


@pytest.mark.parametrize("phase", [Phase.RACE, Phase.FINAL])
def test_who_has_faulted_once_never_ships(finals: Finals, phase: Phase) -> None:
    """Not even where the process in which it did is run again and finds nothing."""
    races = finals.races
    raced(finals)
    won = races.winners()["a"]
    bases = {c.task: c.id for c in races.candidates.values() if c.untuned}
    fault = Failure(FailureKind.WRONG_RESULT, "off by 3")
    races.journal.add_fault("net-1", "llvm", phase.value, won, fault, "unit0")
    assert (races.winners()["a"] == won) == (phase is Phase.FINAL)
    finalists = races.winners().values()
    run(
        finals,
        Phase.FINAL,
        {**dict.fromkeys(finalists, 1.0), **dict.fromkeys(bases.values(), 3.0)},
        PROTOCOL.final_processes,
    )
    assert races.decide_kernels() == (["a"] if phase is Phase.FINAL else [])
    assert won not in [
        races.journal.verdicts("net-1", "llvm")[task]["winner"] for task in races.tuned_traces()
    ]


def test_a_process_in_which_somebody_faulted_is_not_run_again(finals: Finals) -> None:
    a, b = raced(finals)
    bases = [c.id for c in finals.races.candidates.values() if c.untuned]
    for process in range(3):
        chosen = [*bases, b[0], *([a[1]] if process != 1 else [])]
        rows = [Measurement(c, "final", process, (1.0,)) for c in chosen]
        finals.races.journal.add_process("net-1", "llvm", "final", process, rows)
    assert restored(finals).reported == {0, 2}, "what it has may be lost"
    fault = Failure(FailureKind.WRONG_RESULT, "off by 3")
    finals.races.journal.add_fault("net-1", "llvm", "final", a[1], fault, "unit0")
    assert restored(finals).reported == {0, 1, 2}


def restored(finals: Finals) -> TargetState:
    """What a new driver makes of the record."""
    races = finals.races
    ledger = Ledger(races.journal, races.job, races.target)
    ledger.candidates.update(races.candidates)
    races.journal.add_candidates(
        races.job.id, "llvm", [c for c in races.candidates.values() if not c.untuned]
    )
    processes = (PROTOCOL.race_processes, PROTOCOL.place_processes, PROTOCOL.final_processes)
    state = TargetState(Limits(trials=1, processes=(*processes, PROTOCOL.model_processes)))
    untuned = [c for c in races.candidates.values() if c.untuned]
    state.restore(Imported(tuple(Task(c.task, 1, c.id) for c in untuned)))
    for one in untuned:
        state.restore(Screened(one.id, 1.0))
    ledger.retell(state)
    state.restore(BudgetSpent())
    state.resume_work()
    ledger.retell_processes(state)
    return state
