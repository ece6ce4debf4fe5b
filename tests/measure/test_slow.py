"""What is far slower than its rival is called a settled number of times; the clock is our own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.build import Library
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import KernelRace, ModelRequest

pytestmark = pytest.mark.tvm
X = TensorSpec("x", (2,), "float32")


class Clock:
    """Time that passes only when something runs; `calls` counts what ran."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: dict[str, int] = {}

    def perf_counter(self) -> float:
        return self.now

    def run(self, name: str, seconds: float) -> None:
        self.now += seconds
        self.calls[name] = self.calls.get(name, 0) + 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    from tunefarm.measure import builds, kernel

    clock = Clock()
    monkeypatch.setattr(kernel, "time", clock)
    monkeypatch.setattr(builds, "time", clock)
    return clock


def models(monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: dict[str, float]) -> None:
    from tunefarm.measure import builds

    class Timed:
        def __init__(self, library: Path) -> None:
            self.name = library.name

        def upload(self, inputs: Any) -> list[Any]:
            return []

        def run(self, arguments: list[Any], one_by_one: bool = False) -> None:
            clock.run(self.name, seconds[self.name])

    monkeypatch.setattr(builds, "CompiledModel", Timed)


@pytest.mark.parametrize(("calls", "samples"), [(3, 2), (2, 1), (1, 1)])
def test_a_model_that_is_far_slower_is_run_so_many_times(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, calls: int, samples: int
) -> None:
    from tunefarm.measure.builds import interleave

    models(monkeypatch, clock, {"base": 4.0, "tuned": 0.05})
    protocol = Protocol(slow_calls=calls)
    found = interleave(ModelRequest(Path("base"), Path("tuned"), (X,), protocol, 0))
    assert clock.calls["base"] == calls
    assert found.samples["base"] == pytest.approx([4.0] * samples)
    assert len(found.samples["tuned"]) == protocol.model_rounds


@pytest.mark.parametrize(
    ("base", "tuned", "calls"),
    [
        (0.3, 0.05, 3),  # far slower, and long
        (0.31, 0.2, 11),  # not far: as often as there is time for
        (0.09, 0.01, 21),  # not long: all rounds
    ],
)
def test_who_is_called_few_times_is_far_slower_and_takes_long(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, base: float, tuned: float, calls: int
) -> None:
    from tunefarm.measure.builds import interleave

    models(monkeypatch, clock, {"base": base, "tuned": tuned})
    found = interleave(ModelRequest(Path("base"), Path("tuned"), (X,), Protocol(), 0))
    assert clock.calls["base"] == calls
    assert len(found.samples["base"]) == calls - 1


def test_a_model_of_which_one_run_takes_longer_than_all_samples_may_is_run_once(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    from tunefarm.measure.builds import interleave

    models(monkeypatch, clock, {"base": 1.1 * Protocol().model_s, "tuned": 0.05})
    found = interleave(ModelRequest(Path("base"), Path("tuned"), (X,), Protocol(), 0))
    assert clock.calls["base"] == 1
    assert found.samples["base"] == pytest.approx((1.1 * Protocol().model_s,))


def test_a_model_that_others_have_called_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    from tunefarm.measure.builds import interleave

    models(monkeypatch, clock, {"tuned": 0.05})
    found = interleave(ModelRequest(None, Path("tuned"), (X,), Protocol(), 3))
    assert list(found.samples) == ["tuned"]
    assert clock.calls == {"tuned": 21 + 1 + len(found.tail)}
    assert found.cold.build == "tuned"


def test_none_goes_on_alone(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """Two of which neither is far slower: when one has used up its time, both have."""
    from tunefarm.measure.builds import interleave

    protocol = Protocol()
    models(monkeypatch, clock, {"base": protocol.model_s / 8, "tuned": protocol.model_s / 16})
    found = interleave(ModelRequest(Path("base"), Path("tuned"), (X,), protocol, 0))
    assert len(found.samples["base"]) == len(found.samples["tuned"]) == 4


def test_two_slow_models_are_both_run_again(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    from tunefarm.measure.builds import interleave

    models(monkeypatch, clock, {"base": 4.0, "tuned": 2.0})
    request = ModelRequest(Path("base"), Path("tuned"), (X,), Protocol(slow_calls=1), 0)
    found = interleave(request)
    assert len(found.samples["base"]) >= 2
    assert len(found.samples["tuned"]) >= 2


def test_samples_begin_while_the_machine_is_there_and_half_as_long_is_waited_at_most(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    from tunefarm.measure.builds import interleave

    asked = 0

    class Disturbed:
        waited_s = 7.0

        def wait(self, limit_s: float) -> bool:
            nonlocal asked
            asked += 1
            self.waited_s += limit_s
            return False

    protocol = Protocol()
    models(monkeypatch, clock, {"base": 0.05, "tuned": 0.04})
    request = ModelRequest(Path("base"), Path("tuned"), (X,), protocol, 0)
    found = interleave(request, Disturbed())  # type: ignore[arg-type]
    assert len(found.samples["base"]) == len(found.samples["tuned"]) == protocol.model_rounds
    assert asked == 2, "after 3 s, half of what is timed, nobody waits any more"


@pytest.mark.parametrize(
    ("seconds", "calls"), [(0.001, 170), (0.0201, 100), (1.5, 2), (5.0, 1)], ids=str
)
def test_the_tail_is_of_the_tuned_build_alone(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: float, calls: int
) -> None:
    from tunefarm.measure.builds import interleave

    models(monkeypatch, clock, {"base": seconds, "tuned": seconds})
    request = ModelRequest(Path("base"), Path("tuned"), (X,), Protocol(), 0)
    found = interleave(request)
    assert found.tail == pytest.approx([seconds] * calls)
    assert clock.calls["base"] == 1 + len(found.samples["base"])
    without = dataclasses.replace(request, protocol=Protocol(tail_calls=0))
    assert interleave(without).tail == ()


def test_each_build_is_loaded_first_by_some_process(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """And that one is called before the next is loaded: it is cold, and what the process holds is
    its own."""
    from tunefarm.measure.builds import interleave

    models(monkeypatch, clock, {"base": 0.3, "tuned": 0.2, "previous": 0.1})
    started = []
    for process in range(4):
        request = ModelRequest(
            *(Path("base"), Path("tuned"), (X,), Protocol(), process), Path("previous")
        )
        found = interleave(request)
        assert set(found.samples) == {"base", "tuned", "previous"}
        started.append((found.cold.build, round(found.cold.first_s, 3)))
        assert found.cold.peak_bytes > 10e6
    assert started == [("base", 0.3), ("tuned", 0.2), ("previous", 0.1), ("base", 0.3)]


@pytest.mark.parametrize(("own", "previous"), [(0.05, 1.0), (0.05, 0.1), (0.14, 0.01)])
def test_a_previous_build_does_not_cut_short_the_jobs_own(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, own: float, previous: float
) -> None:
    """Neither a slow one nor one beside which both are slow: it may be of another network."""
    from tunefarm.measure.builds import interleave

    models(monkeypatch, clock, {"base": own, "tuned": own, "previous": previous})
    request = ModelRequest(*(Path("base"), Path("tuned"), (X,), Protocol(), 0), Path("previous"))
    found = interleave(request)
    assert len(found.samples["base"]) == len(found.samples["tuned"]) == Protocol().model_rounds
    assert clock.calls["previous"] * previous < Protocol().model_s


@pytest.mark.parametrize(("calls", "samples"), [(3, 2), (2, 1), (1, 1)])
def test_a_kernel_that_is_far_slower_is_called_so_many_times(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path, calls: int, samples: int
) -> None:
    from tunefarm.measure import kernel

    seconds = {"slow": 0.2, "fast": 0.001, "near": 0.0015}

    class Timed:
        def __init__(self, library: Library, facts: KernelFacts) -> None:
            self.name = library.path.name

        def bind(self, inputs: list[Any]) -> list[Any]:
            return [kernel.tvm.runtime.tensor(np.ones(2, "float32"))]

        def run(self, arguments: list[Any]) -> None:
            clock.run(self.name, seconds[self.name])

        def in_turns(self, arguments: list[Any], protocol: Protocol) -> list[list[Any]]:
            return [arguments]

        def sample(self, turns: list[list[Any]], number: int, repeat: int) -> list[float]:
            clock.run(self.name, number * seconds[self.name])
            return [seconds[self.name]] * repeat

    monkeypatch.setattr(kernel, "Kernel", Timed)
    reference = tmp_path / "reference.npz"
    np.savez(reference, positive=False, out1=np.ones(2, "float32"))
    protocol = dataclasses.replace(Protocol(), slow_calls=calls)
    entries = tuple((name, Library(Path(name), ())) for name in seconds)
    facts = KernelFacts("k", (X, X), 2.0, reference)
    found = kernel.race(KernelRace(facts, entries, protocol, 5, 9.0, 0), kernel.Arguments())
    assert clock.calls["slow"] == calls
    assert found["slow"] == pytest.approx([0.2] * samples)
    assert len(found["fast"]) == len(found["near"]) == 5
