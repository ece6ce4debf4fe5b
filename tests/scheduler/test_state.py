"""The job state machine under thousands of random event orders, checked after each."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tunefarm.scheduler.messages import (
    BudgetSpent,
    Build,
    Built,
    Imported,
    Instruction,
    Lost,
    Phase,
    ProcessDone,
    Propose,
    Proposed,
    RunProcess,
    Screen,
    Screened,
    Step,
    StepDone,
    Task,
)
from tunefarm.scheduler.state import Limits, TargetState


def tasks(count: int) -> tuple[Task, ...]:
    return tuple(Task(f"t{i}", i + 1, f"base{i}") for i in range(count))


class World:
    """Workers on paper: they take instructions, and answer one of them when asked to."""

    def __init__(self, limits: Limits, count: int, seed: int) -> None:
        self.state = TargetState(limits)
        self.rng = random.Random(seed)
        self.open: list[Instruction] = []
        self.made = 0
        self.measured: list[str] = []
        self.log: list[object] = []
        self.take(self.state.handle(Imported(tasks(count))))

    def take(self, instructions: list[Instruction]) -> None:
        self.open += instructions

    def event(self, event: object) -> None:
        self.log.append(event)
        self.take(self.state.handle(event))  # type: ignore[arg-type]
        self.state.validate()

    def answer(self, index: int, fail: bool = False, exhausted: bool = False) -> None:
        instruction = self.open.pop(index % len(self.open))
        match instruction:
            case Propose(task, count, _):
                names = () if exhausted else tuple(f"c{self.made + i}" for i in range(count))
                self.made += len(names)
                self.event(Proposed(task, names))
            case Build(candidate):
                self.event(Screened(candidate, None) if fail else Built(candidate, True))
            case Screen(candidate, _):
                if not fail:
                    self.measured.append(candidate)
                self.event(Screened(candidate, None if fail else self.rng.uniform(1e-4, 1e-2)))
            case RunProcess(phase, process):
                self.event(ProcessDone(phase, process))
            case Step(phase):
                self.event(StepDone(phase))

    def run(self, limit: int = 20_000) -> None:
        for _ in range(limit):
            if self.state.phase is Phase.DONE:
                return
            assert self.open, f"nothing to do in phase {self.state.phase}"
            self.answer(self.rng.randrange(len(self.open)), fail=self.rng.random() < 0.1)
        raise AssertionError("it does not end")


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 6), st.booleans(), st.integers(1, 3), st.integers(0, 2**20)
)
def test_every_job_ends_within_its_trials(
    trials: int, count: int, shared: bool, builders: int, seed: int
) -> None:
    limits = Limits(trials, builders=builders, shared_processor=shared, batch=4)
    world = World(limits, count, seed)
    world.run()
    assert world.state.measured <= trials
    assert len(world.measured) == len(set(world.measured))
    assert all(b in world.state.done for b in world.state.baselines)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 60))
def test_a_resumed_job_measures_nothing_twice_and_loses_nothing(seed: int, crash: int) -> None:
    """Kill the driver after some events; what the journal holds goes into a new machine."""
    limits = Limits(trials=24, batch=4)
    world = World(limits, 3, seed)
    for _ in range(crash):
        if world.state.phase not in (Phase.BASELINE, Phase.TUNE):
            break
        world.answer(world.rng.randrange(len(world.open)), fail=world.rng.random() < 0.1)
    facts = [e for e in world.log if isinstance(e, Proposed | Screened)]
    reached_race = world.state.phase not in (Phase.BASELINE, Phase.TUNE)

    second = World(limits, 3, seed + 1)
    second.state = TargetState(limits)
    second.state.restore(Imported(tasks(3)))
    for fact in facts:
        second.state.restore(fact)
    if reached_race:
        second.state.restore(BudgetSpent())
    second.made = 1000
    second.open = second.state.resume_work()
    second.state.validate()
    second.run()
    assert not set(world.measured) & set(second.measured)
    proposed = {c for f in facts if isinstance(f, Proposed) for c in f.candidates}
    if not reached_race:
        assert proposed <= second.state.done
    assert second.state.measured <= limits.trials


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**20))
def test_a_job_that_may_stop_early_ends_with_fewer_trials(seed: int) -> None:
    """Latencies from one range: little is gained after the first hundred."""
    limits = Limits(trials=2000, batch=4, patience=2000, enough=0.5)
    world = World(limits, 2, seed)
    world.run()
    known = [one for one in world.state.tasks.values() if one.baseline_s is not None]
    assert (100 if known else 0) <= world.state.measured < 1000
    assert world.state.phase is Phase.DONE


def test_every_phase_after_tuning_is_gone_through_once() -> None:
    world = World(Limits(trials=4, batch=4, processes=(2, 3, 4, 5)), 1, 0)
    world.run()
    after = [e for e in world.log if isinstance(e, ProcessDone | StepDone)]
    phases = [Phase.RACE] * 2 + [Phase.VARIANTS] + [Phase.PLACE] * 3 + [Phase.FINAL] * 4
    phases += [Phase.ASSEMBLE] + [Phase.COMPARE] * 5 + [Phase.PACKAGE]
    assert [e.phase for e in after] == phases


@pytest.mark.parametrize("rows", [["place", "final"], ["final"]], ids=["now", "before place was"])
def test_a_job_resumed_among_its_finals_repeats_none(rows: list[str]) -> None:
    """Steps leave no record, and an older journal has no process of `PLACE`."""
    state = TargetState(Limits(trials=4, batch=4, processes=(2, 3, 4, 5)))
    state.restore(Imported(tasks(1)))
    state.restore(Screened("base0", 1.0))
    state.restore(BudgetSpent())
    state.resume_work()
    for process in range(2):
        state.handle(ProcessDone(Phase.RACE, process))
    assert state.phase is Phase.VARIANTS
    counts = {"place": 3, "final": 2}
    for row in rows:
        for process in range(counts[row]):
            instructions = state.handle(ProcessDone(Phase(row), process))
    assert instructions == [RunProcess(Phase.FINAL, 2)]


def test_what_earlier_jobs_know_is_no_gain_of_this_one() -> None:
    """It stops after a hundred results of its own, however many it began with."""
    state = TargetState(Limits(trials=2000, batch=4, patience=2000, enough=0.5))
    state.restore(Imported(tasks(1)))
    state.restore(Proposed("t0", tuple(f"known{n}" for n in range(700))))
    for n in range(700):
        state.restore(Screened(f"known{n}", 1e-3))
    world = World(Limits(1), 1, 0)
    world.state, world.open = state, state.resume_work()
    world.made = 1000
    while world.state.phase is not Phase.DONE:
        world.answer(0)
    own = [c for c in world.measured if not c.startswith(("known", "base"))]
    assert 100 <= len(own) < 200


def test_a_kernel_at_its_roof_is_left_alone() -> None:
    world = World(Limits(trials=60), 2, 0)
    world.state.tasks["t0"].floor_s = 1e-4
    world.rng.uniform = lambda low, high: 1.03e-4  # type: ignore[method-assign]
    world.run()
    first, second = world.state.tasks.values()
    assert first.closed
    assert first.results < 20
    assert second.results > first.results, "whose roof is not known, goes on"


def test_on_a_shared_processor_nothing_is_built_while_something_is_timed() -> None:
    world = World(Limits(trials=30, batch=6), 3, 1)
    while world.state.phase in (Phase.BASELINE, Phase.TUNE):
        busy = [type(i) for i in world.open]
        assert not (Screen in busy and (Build in busy or Propose in busy))
        world.answer(world.rng.randrange(len(world.open)))


def test_with_processors_of_their_own_they_overlap() -> None:
    world = World(Limits(trials=30, shared_processor=False), 3, 1)
    overlapped = False
    while world.state.phase in (Phase.BASELINE, Phase.TUNE):
        busy = [type(i) for i in world.open]
        overlapped = overlapped or (Screen in busy and Build in busy)
        world.answer(world.rng.randrange(len(world.open)))
    assert overlapped


def test_a_kernel_whose_baseline_fails_is_left_alone() -> None:
    world = World(Limits(trials=8, batch=4), 2, 0)
    while world.state.phase is Phase.BASELINE:
        first = world.open[0]
        fail = isinstance(first, Build | Screen) and first.candidate == "base0"
        world.answer(0, fail=fail)
    world.run()
    assert world.state.tasks["t0"].closed
    assert world.state.tasks["t0"].results == 0
    assert world.state.tasks["t1"].results > 0


def test_an_exhausted_space_ends_its_kernel() -> None:
    world = World(Limits(trials=100, batch=4), 1, 0)
    while world.state.phase in (Phase.BASELINE, Phase.TUNE):
        world.answer(0, exhausted=world.made >= 6)
    assert world.state.measured == 6 or world.state.tasks["t0"].closed


def test_candidates_known_already_do_not_close_a_kernel() -> None:
    world = World(Limits(trials=20, batch=4), 1, 0)
    while not any(isinstance(i, Propose) for i in world.open):
        world.answer(0)
    ask = next(i for i in world.open if isinstance(i, Propose))
    world.open.remove(ask)
    world.event(Proposed(ask.task, ("base0",)))
    assert not world.state.tasks["t0"].closed
    world.run()
    assert world.state.measured > 0


def test_lost_work_is_given_out_again() -> None:
    world = World(Limits(trials=8, batch=4), 2, 0)
    for _ in range(200):
        if world.state.phase is Phase.DONE:
            break
        index = world.rng.randrange(len(world.open))
        if world.rng.random() < 0.2:
            world.event(Lost(world.open.pop(index)))
        else:
            world.answer(index)
    else:
        raise AssertionError("it does not end")


def test_late_and_repeated_answers_change_nothing() -> None:
    world = World(Limits(trials=4, batch=2), 1, 0)
    world.run()
    before = (world.state.measured, len(world.state.done), world.state.phase)
    for event in list(world.log):
        world.state.handle(event)  # type: ignore[arg-type]
        world.state.validate()
    assert (world.state.measured, len(world.state.done), world.state.phase) == before


@pytest.mark.parametrize("trials", [1, 7, 300])
def test_warm_up_uses_at_most_half_of_the_trials(trials: int) -> None:
    limits = Limits(trials)
    for count in (1, 10, 200):
        assert 1 <= limits.warm_up(count) <= 8
        assert limits.warm_up(count) == 1 or limits.warm_up(count) * count <= trials / 2


class Orders(RuleBasedStateMachine):
    """Any order of answers, failures, losses and a budget's end."""

    @initialize(
        trials=st.integers(1, 20), count=st.integers(1, 4), shared=st.booleans(), seed=st.integers()
    )
    def start(self, trials: int, count: int, shared: bool, seed: int) -> None:
        limits = Limits(trials, shared_processor=shared, batch=4)
        self.world = World(limits, count, seed)

    @precondition(lambda self: self.world.open)
    @rule(index=st.integers(0, 30), fail=st.booleans(), exhausted=st.booleans())
    def answer(self, index: int, fail: bool, exhausted: bool) -> None:
        self.world.answer(index, fail, exhausted)

    @precondition(lambda self: self.world.open)
    @rule(index=st.integers(0, 30))
    def lose(self, index: int) -> None:
        self.world.event(Lost(self.world.open.pop(index % len(self.world.open))))

    @rule()
    def spend(self) -> None:
        self.world.event(BudgetSpent())

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "world"):
            self.world.state.validate()
            if self.world.state.phase is not Phase.DONE:
                assert self.world.open, "a job that is not done has something to do"


TestOrders = Orders.TestCase
TestOrders.settings = settings(
    max_examples=200,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_the_first_turns_are_short() -> None:
    """One candidate, then half a batch, then whole ones."""
    world = World(Limits(trials=60, builders=1, batch=16), 1, 0)
    turns, size = [], 0
    while world.state.phase in (Phase.BASELINE, Phase.TUNE):
        before = world.state.turn
        if isinstance(world.open[0], Screen) and world.state.phase is Phase.TUNE:
            size += 1
        world.answer(0)
        if before is not world.state.turn and size:
            turns.append(size)
            size = 0
    assert turns[:3] == [1, 8, 16]
