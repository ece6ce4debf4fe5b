"""The job state machine under thousands of random event orders, checked after each."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tunefarm.scheduler.messages import (
    Assignment,
    BudgetSpent,
    Build,
    Builders,
    Built,
    Done,
    Event,
    Fact,
    Imported,
    Instruction,
    Joined,
    Lease,
    Left,
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
    """Workers on paper: they take assignments, and answer one of them when asked to."""

    def __init__(self, limits: Limits, count: int, seed: int, units: int = 1) -> None:
        self.state = TargetState(limits)
        self.rng = random.Random(seed)
        self.given: list[Assignment] = []
        self.made = 0
        self.measured: list[str] = []
        self.log: list[Event] = []
        self.state.restore(Imported(tasks(count)))
        for unit in range(units):
            self.given += self.state.handle(Joined(f"unit{unit}"))

    @property
    def open(self) -> list[Instruction]:
        return [one.instruction for one in self.given]

    def event(self, event: Event) -> None:
        self.log.append(event.fact if isinstance(event, Done) else event)
        self.given += self.state.handle(event)
        self.given = [one for one in self.given if self.state.leases.holds(one.lease)]
        self.state.validate()

    def pop(self, index: int) -> Assignment:
        return self.given.pop(index % len(self.given))

    def answer(self, index: int, fail: bool = False, exhausted: bool = False) -> None:
        one = self.pop(index)
        self.event(Done(one.lease, self.fact(one.instruction, fail, exhausted)))

    def fact(self, instruction: Instruction, fail: bool, exhausted: bool) -> Fact:
        match instruction:
            case Propose(task, count, _):
                names = () if exhausted else tuple(f"c{self.made + i}" for i in range(count))
                self.made += len(names)
                return Proposed(task, names)
            case Build(candidate):
                return Screened(candidate, None) if fail else Built(candidate, True)
            case Screen(candidate, _, _):
                if not fail:
                    self.measured.append(candidate)
                return Screened(candidate, None if fail else self.rng.uniform(1e-4, 1e-2))
            case RunProcess(phase, process, _):
                return ProcessDone(phase, process)
            case Step(phase):
                return StepDone(phase)

    def run(self, limit: int = 20_000) -> None:
        for _ in range(limit):
            if self.state.phase is Phase.DONE:
                return
            assert self.open, f"nothing to do in phase {self.state.phase}"
            self.answer(self.rng.randrange(len(self.open)), fail=self.rng.random() < 0.1)
        raise AssertionError("it does not end")


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 6),
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 2**20),
)
def test_every_job_ends_within_its_trials(
    trials: int, count: int, shared: bool, builders: int, units: int, seed: int
) -> None:
    limits = Limits(trials, builders=builders, shared_processor=shared, batch=4)
    world = World(limits, count, seed, units)
    world.run()
    assert world.state.measured <= trials
    assert len(world.measured) == len(set(world.measured))
    assert all(b in world.state.done for b in world.state.baselines)


@pytest.mark.slow
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
    second.given = second.state.handle(Joined("unit0"))
    second.state.validate()
    second.run()
    assert not set(world.measured) & set(second.measured)
    proposed = {c for f in facts if isinstance(f, Proposed) for c in f.candidates}
    if not reached_race:
        assert proposed <= second.state.done
    assert second.state.measured <= limits.trials


@pytest.mark.slow
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
    phases += [Phase.ASSEMBLE] + [Phase.COMPARE] * 5 + [Phase.CHECK, Phase.PACKAGE]
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
            state.restore(ProcessDone(Phase(row), process))
    (given,) = state.handle(Joined("unit0"))
    assert given.instruction == RunProcess(Phase.FINAL, 2, "unit0")


def test_what_earlier_jobs_know_is_no_gain_of_this_one() -> None:
    """It stops after a hundred results of its own, however many it began with."""
    state = TargetState(Limits(trials=2000, batch=4, patience=2000, enough=0.5))
    state.restore(Imported(tasks(1)))
    state.restore(Proposed("t0", tuple(f"known{n}" for n in range(700))))
    for n in range(700):
        state.restore(Screened(f"known{n}", 1e-3))
    world = World(Limits(1), 1, 0)
    world.state, world.given = state, state.handle(Joined("unit0"))
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
    ask = next(one for one in world.given if isinstance(one.instruction, Propose))
    world.given.remove(ask)
    world.event(Done(ask.lease, Proposed("t0", ("base0",))))
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
            world.event(Lost(world.pop(index).lease))
        else:
            world.answer(index)
    else:
        raise AssertionError("it does not end")


def test_late_and_repeated_answers_change_nothing() -> None:
    world = World(Limits(trials=4, batch=2), 1, 0)
    world.run()
    before = (world.state.measured, len(world.state.done), world.state.phase)
    for number, event in enumerate(list(world.log)):
        world.state.handle(event)
        world.state.handle(Done(Lease(0, number), event))  # type: ignore[arg-type]
        world.state.validate()
    assert (world.state.measured, len(world.state.done), world.state.phase) == before


class Orders(RuleBasedStateMachine):
    """Any order of answers, failures, losses and a budget's end."""

    @initialize(
        trials=st.integers(1, 20),
        count=st.integers(1, 4),
        shared=st.booleans(),
        units=st.integers(0, 3),
        seed=st.integers(),
    )
    def start(self, trials: int, count: int, shared: bool, units: int, seed: int) -> None:
        limits = Limits(trials, shared_processor=shared, batch=4)
        self.world = World(limits, count, seed, units)
        self.late: list[Assignment] = []

    @precondition(lambda self: self.world.open)
    @rule(index=st.integers(0, 30), fail=st.booleans(), exhausted=st.booleans())
    def answer(self, index: int, fail: bool, exhausted: bool) -> None:
        self.world.answer(index, fail, exhausted)

    @precondition(lambda self: self.world.open)
    @rule(index=st.integers(0, 30))
    def lose(self, index: int) -> None:
        lost = self.world.pop(index)
        self.late.append(lost)
        self.world.event(Lost(lost.lease))

    @precondition(lambda self: self.late)
    @rule(index=st.integers(0, 30))
    def come_back(self, index: int) -> None:
        """A worker that was given up answers all the same: it counts for nothing."""
        one = self.late[index % len(self.late)]
        world = self.world
        before = (set(world.state.done), world.state.measured)
        measured = list(world.measured)
        world.event(Done(one.lease, world.fact(one.instruction, False, False)))
        world.measured = measured
        state = world.state
        assert (set(state.done), state.measured) == before

    @rule(unit=st.integers(0, 3))
    def join(self, unit: int) -> None:
        self.world.event(Joined(f"unit{unit}"))

    @rule(unit=st.integers(0, 3))
    def leave(self, unit: int) -> None:
        lease = self.world.state.leases.on(f"unit{unit}")
        self.late += [one for one in self.world.given if one.lease == lease]
        self.world.event(Left(f"unit{unit}"))

    @rule(count=st.integers(1, 4))
    def build_with(self, count: int) -> None:
        self.world.event(Builders(count))

    @rule()
    def spend(self) -> None:
        self.world.event(BudgetSpent())

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "world"):
            self.world.state.validate()
            if self.world.state.phase is not Phase.DONE and self.world.state.leases.units:
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


def test_finals_are_run_on_two_units_where_there_are_two() -> None:
    world = World(Limits(trials=4, batch=4, processes=(2, 3, 4, 5)), 1, 0, units=3)
    used: dict[Phase, set[str]] = {}
    while world.state.phase is not Phase.DONE:
        for instruction in world.open:
            if isinstance(instruction, RunProcess):
                used.setdefault(instruction.phase, set()).add(instruction.unit)
        world.answer(world.rng.randrange(len(world.given)))
    assert len(used.pop(Phase.CHECK)) == 1
    assert all(len(units) >= 2 for units in used.values())
    assert set(used) == {Phase.RACE, Phase.PLACE, Phase.FINAL, Phase.COMPARE}


def test_an_answer_from_another_drivers_life_counts_for_nothing() -> None:
    world = World(Limits(trials=4, batch=4), 1, 0)
    one = world.given[0]
    world.event(Done(Lease(7, one.lease.number), Built("base0", True)))
    assert world.state.leases.holds(one.lease)
    assert not world.state.built


def test_a_job_without_units_waits_for_one() -> None:
    world = World(Limits(trials=4, batch=4), 1, 0, units=0)
    assert not world.open
    world.event(Joined("unit0"))
    world.run()
