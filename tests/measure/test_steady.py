"""Waiting for a machine that is all there, on machines and clocks of paper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunefarm.measure import allowance
from tunefarm.measure.allowance import Allowance
from tunefarm.measure.runner import Runner
from tunefarm.measure.steady import (
    Steady,
    gauge_from_file,
    least_of,
    near_from_file,
    of_exchange,
    of_work,
)

LONG_S = 600.0


class Machine:
    """Disturbed, at half its speed, in the given intervals of its own time."""

    def __init__(self, *disturbed: tuple[float, float], slower: float = 1.0) -> None:
        self.now = 0.0
        self.disturbed = disturbed
        self.slower = slower

    def gauge(self) -> float:
        self.now += 1e-4
        half = any(begin <= self.now < end for begin, end in self.disturbed)
        return 1e-4 * self.slower * (2 if half else 1)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def allowance(self, file: Path | None = None) -> Allowance:
        return Allowance(file, lambda: self.now)

    def steady(self) -> Steady:
        return Steady([of_work(self.gauge, 1e-4)], self.sleep, allowance=self.allowance())

    def work(self, seconds: float) -> list[float]:
        begin, self.now = self.now, self.now + seconds
        hit = any(begin < end and start < self.now for start, end in self.disturbed)
        return [2.0 if hit else 1.0]


def test_an_undisturbed_machine_is_not_waited_for() -> None:
    machine = Machine()
    steady = machine.steady()
    assert steady.wait()
    assert machine.now < 1e-3
    assert not steady.waited_s


def test_a_disturbance_is_waited_out() -> None:
    machine = Machine((0.0, 0.15))
    steady = machine.steady()
    assert steady.wait()
    assert 0.15 <= machine.now < 0.2
    assert steady.waited_s == pytest.approx(0.15, abs=0.03)


def test_what_was_disturbed_is_timed_again() -> None:
    machine = Machine((0.03, 0.10))
    assert machine.steady().undisturbed(lambda: machine.work(0.05)) == [1.0]
    assert machine.now > 0.10


def test_what_is_disturbed_all_the_time_is_timed_all_the_same() -> None:
    machine = Machine((0.0, 1e9))
    assert machine.steady().undisturbed(lambda: machine.work(0.05)) == [2.0]
    assert machine.now < 3 * (Steady.LIMIT_S + 0.2)


def test_it_counts_what_was_disturbed_all_the_same() -> None:
    calm, busy, for_good = Machine(), Machine((0, 1e9)), Machine(slower=2)
    for machine, disturbed in ((calm, 0), (busy, 4), (for_good, 4)):
        steady = machine.steady()
        for _ in range(4):  # the third is what counts as undisturbed by then
            steady.undisturbed(lambda m=machine: m.work(0.5))
        assert steady.disturbed == disturbed
    passing = Machine((0.1, 0.2))
    steady = passing.steady()
    steady.undisturbed(lambda: passing.work(0.15))
    assert steady.disturbed == 0, "it was measured again"


def test_a_machine_that_has_become_slower_is_not_waited_for_forever() -> None:
    machine = Machine(slower=1.6)
    steady = machine.steady()
    assert [steady.wait() for _ in range(3)] == [False] * 3
    waited = steady.waited_s
    assert steady.wait()
    assert steady.waited_s == waited


def test_one_long_wait_in_vain_is_enough() -> None:
    machine = Machine(slower=1.6)
    steady = machine.steady()
    assert not steady.wait(10.0)
    assert steady.waited_s == pytest.approx(10.0, abs=0.1)
    assert steady.wait()
    assert steady.waited_s == pytest.approx(10.0, abs=0.1)


def test_who_has_the_time_waits_out_a_long_disturbance() -> None:
    machine = Machine((0.0, 8.0))
    steady = machine.steady()
    assert steady.wait(10.0)
    assert 8.0 <= machine.now < 8.1
    assert machine.steady().undisturbed(lambda: machine.work(0.05)) == [1.0]


def test_what_was_slow_for_long_is_held_to_its_speed_again_once_it_recovers() -> None:
    machine = Machine((0.0, 5.0), (9.0, 9.1))
    steady = machine.steady()
    while machine.now < 5.0:
        steady.wait()
        machine.sleep(0.1)
    assert steady.there()
    machine.now = 9.0
    assert not steady.there(), "the second disturbance is noticed like the first"
    assert steady.wait()
    assert machine.now >= 9.1


@pytest.mark.slow
@pytest.mark.parametrize("calm", [0.0, 7200.0])
def test_a_host_that_is_busy_for_long_keeps_a_search_from_a_share_of_it_alone(
    calm: float,
) -> None:
    # Undisturbed for a tenth of a second in every six: nothing it does for long counts as slower.
    machine = Machine(*((calm + 6.0 * n, calm + 6.0 * n + 5.9) for n in range(100)))
    steady, screened = machine.steady(), 0
    machine.now = calm
    while machine.now < calm + LONG_S:
        steady.wait(10.0)
        steady.undisturbed(lambda: machine.work(0.05))
        screened += 1
    assert steady.waited_s < Allowance.MOST_S + (Allowance.SHARE + 0.01) * LONG_S
    assert screened > 0.8 * LONG_S / 0.05, "of what an undisturbed machine would have seen"
    machine.now = calm + 1e5
    assert steady.wait()


class Apart(Machine):
    """Whose cores lie far apart in these intervals, and compute as always."""

    def exchange(self) -> float:
        self.now += 1e-3
        far = any(begin <= self.now < end for begin, end in self.disturbed)
        return 8e-6 if far else 2.5e-6

    def gauge(self) -> float:
        return 1e-4

    def steady(self) -> Steady:
        norms = [of_work(self.gauge, 1e-4), of_exchange(self.exchange, 2e-6)]
        return Steady(norms, self.sleep, allowance=self.allowance())


def test_cores_that_are_apart_are_waited_for() -> None:
    machine = Apart((0.0, 0.3), (0.33, 0.5))
    steady = machine.steady()
    assert steady.undisturbed(lambda: machine.work(0.05)) == [1.0]
    assert 0.5 < machine.now < 0.7


def test_cores_that_stay_apart_are_not_waited_for_forever_until_they_have_been_near() -> None:
    machine = Apart((0.0, 5.0), (9.0, 1e9))
    steady = machine.steady()
    while not steady.wait():
        assert machine.now < 2.0
    waited = steady.waited_s
    assert steady.there()
    assert steady.waited_s == waited
    machine.now = 6.0
    assert steady.there()
    machine.now = 9.0
    assert not steady.there()


def test_what_is_accepted_is_what_is_the_matter_alone() -> None:
    """Cores that stay apart do not make slow ones count as undisturbed."""
    machine = Apart((0.0, 1e9))
    halved = False
    work = of_work(lambda: 2e-4 if halved else 1e-4, 1e-4)
    norms = [work, of_exchange(machine.exchange, 2e-6)]
    steady = Steady(norms, machine.sleep, allowance=machine.allowance())
    assert not steady.wait(2.0)
    assert steady.there()
    halved = True
    assert not steady.there()


def test_a_machine_without_gauges_is_always_there() -> None:
    assert Steady([]).undisturbed(lambda: [1.0]) == [1.0]


@pytest.mark.parametrize(
    ("text", "near_s"),
    [('{"near_s": 2e-6}', 2e-6), ('{"near_s": 0.0}', None), ("{}", None), ("[", None)],
)
def test_what_near_cores_take_is_on_record(tmp_path: Path, text: str, near_s: float | None) -> None:
    path = tmp_path / "roof.json"
    path.write_text(text)
    assert near_from_file(path) == near_s
    assert near_from_file(tmp_path / "missing.json") is None


@pytest.mark.parametrize("text", ["", "{}", '{"gauge": null}', '{"gauge": {"shapes": 3}}'])
def test_a_file_without_a_gauge_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "roof.json"
    path.write_text(text)
    assert gauge_from_file(path) is None
    assert gauge_from_file(tmp_path / "missing.json") is None


def test_a_gauge_without_its_library_is_none(tmp_path: Path) -> None:
    path = tmp_path / "roof.json"
    path.write_text(json.dumps({"gauge": {"shapes": [[2, 16]], "seconds": 1e-4}}))
    assert gauge_from_file(path) is None
    path.with_suffix(".so").touch()
    found = gauge_from_file(path)
    assert found is not None
    assert found.shapes == ((2, 16),)


@pytest.mark.tvm
def test_a_screening_is_prepared_once_a_long_disturbance_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunefarm.measure import serve
    from tunefarm.measure.facts import KernelFacts
    from tunefarm.measure.requests import Prepare

    machine = Machine((0.0, 8.0))
    monkeypatch.setattr(serve, "_STEADY", machine.steady())
    serve.serve(Prepare(KernelFacts("k", (), 0.0, tmp_path / "none.npz"), ()))
    assert 8.0 <= machine.now < 8.1


@pytest.mark.tvm
def test_a_network_waits_for_what_kernels_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunefarm.measure import serve
    from tunefarm.measure.protocol import Protocol
    from tunefarm.measure.requests import ModelRequest

    steady, given = Machine().steady(), []
    monkeypatch.setattr(serve, "_STEADY", steady)
    monkeypatch.setattr(serve.builds, "interleave", lambda _, waits: given.append(waits) or {})
    serve.serve(ModelRequest(None, Path("tuned"), (), Protocol(), 0))
    assert given == [steady]


@pytest.mark.tvm
def test_two_artifacts_wait_before_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunefarm.results import duel, loader

    class Loaded:
        inputs: tuple[()] = ()

        def __call__(self, _: object) -> dict[str, object]:
            return {}

    class Waits:
        def wait(self) -> None:
            waited.append(near)

    near, waited, asked = 2e-6, list[float](), list[float]()
    loads: list[str] = []
    monkeypatch.setattr(loader, "load", lambda path: loads.append(path.name) or Loaded())
    monkeypatch.setattr(duel, "while_near", lambda near_s: asked.append(near_s) or Waits())
    found = duel.run_round(duel.Turn((Path("a"), Path("b")), 0, 0.0, near))
    assert asked == [near]
    assert len(waited) == len(found.samples[0]) == duel.LEAST_ROUNDS
    duel.run_round(duel.Turn((Path("a"), Path("b")), 1, 0.0, near))
    assert loads == ["a", "b", "b", "a"], "who is first has other pages"


def test_no_more_is_waited_in_a_row_than_is_allowed_and_it_comes_back() -> None:
    machine = Machine((0.0, 100.0), (500.0, 600.0))
    steady = machine.steady()
    steady.wait(60.0)
    assert steady.waited_s == pytest.approx(Allowance.MOST_S, abs=0.1)
    machine.now = 400.0
    assert steady.wait(), "it recovered"
    machine.now = 500.0
    steady.wait(60.0)
    assert steady.waited_s == pytest.approx(2 * Allowance.MOST_S, abs=0.1)


def test_processes_one_after_another_wait_no_longer_than_one(tmp_path: Path) -> None:
    machine = Machine((0.0, 1e9))
    waited = 0.0
    for _ in range(18):  # races and finals of one job, ten seconds each
        norms = [of_work(machine.gauge, 1e-4)]
        steady = Steady(norms, machine.sleep, allowance=machine.allowance(tmp_path / "waited"))
        steady.wait(5.0)
        machine.now += 5.0
        steady.wait(5.0)
        machine.now += 5.0
        waited += steady.waited_s
    assert waited < Allowance.MOST_S + (Allowance.SHARE + 0.01) * machine.now
    assert waited > Allowance.MOST_S


def test_cores_that_have_rested_are_asked_again_before_they_are_judged() -> None:
    asked = []

    def rounds(*given: list[float]) -> Iterator[list[float]]:
        for times in given:
            asked.append(times)
            yield times

    assert least_of(rounds([1.1, 1.3], [0.9]), 1.0) == 1.1
    assert len(asked) == 1, "it is there"
    assert least_of(rounds([2.0, 1.8], [1.7, 1.0]), 1.0) == 1.0
    assert least_of(rounds([2.0, 1.8], [1.9, 2.1]), 1.0) == 1.8


class Scripted(Runner):
    """Whose child answers what it is told to."""

    def __init__(self, *answers: bool) -> None:
        super().__init__(1, 2**30)
        self.left = list(answers)

    def _asked(self, what: str) -> bool:
        return self.left.pop(0)


def test_a_runner_that_may_not_wait_asks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(allowance.VARIABLE, str(tmp_path / "waited"))
    runner = Scripted(False, True, True)
    assert not runner.await_steady(0.0)
    assert runner.left == [True, True]
    assert not (tmp_path / "waited").exists() or allowance.of_the_machine().left_s() > 19.9
    assert runner.await_steady(5.0)
    assert runner.left == [True]
    allowance.of_the_machine().take(60.0)
    nothing_left = Scripted(False, True)
    assert not nothing_left.await_steady(5.0)
    assert nothing_left.left == [True]


def test_what_a_runner_waits_is_on_the_machines_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(allowance.VARIABLE, str(tmp_path / "waited"))
    assert Scripted(False, False, False, True).await_steady(5.0)
    assert Allowance.MOST_S - 1.0 < allowance.of_the_machine().left_s() < Allowance.MOST_S - 0.1
