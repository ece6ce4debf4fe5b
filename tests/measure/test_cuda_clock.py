"""Timing on a GPU of paper, which says when it is asked for something out of order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.build import Library
from tunefarm.measure.cuda.clock import Clock, CudaError
from tunefarm.measure.facts import KernelFacts

BEGINNING_S = 5e-6
"""What Python takes to begin a call."""
NOT_PERMITTED = 900


class Runtime:
    """CUDA's runtime library, as far as a clock uses it; every function is an attribute, as of a
    library."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.made: dict[int, str] = {}
        self.times: dict[int, float] = {}
        self.graphs: dict[int, list[float]] = {}
        self.capturing: list[float] | None = None
        self.stream: int | None = None
        self.launched: list[int | None] = []
        self.errors = {NOT_PERMITTED: b"operation not permitted when stream is capturing"}
        for name in dir(Runtime):
            if name.startswith("do_"):
                setattr(self, "cuda" + name.removeprefix("do_"), partial(getattr(self, name)))

    def kernel(self, seconds: float) -> None:
        """What a call of a kernel comes to."""
        if self.stream is not None:
            assert self.capturing is not None, "launched on a stream that nobody waits for"
            self.capturing.append(seconds)
            return
        self.launched.append(None)
        self.now_s += max(seconds, BEGINNING_S)

    def wait(self) -> None:
        """A kernel that waits, which cannot be captured."""
        if self.capturing is not None:
            raise RuntimeError("TVM's own words")
        self.kernel(1e-6)

    def copy(self) -> None:
        """TVM's own, which goes to the default stream whatever stream it is to go to."""
        self.launched.append(None)
        self.now_s += 4e-5

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        self.stream = stream
        try:
            yield
        finally:
            self.stream = None

    def _new(self, kind: str, place: Any) -> int:
        place._obj.value = len(self.made) + 1
        self.made[len(self.made) + 1] = kind
        return 0

    def do_EventCreate(self, event: Any) -> int:
        return self._new("event", event)

    def do_StreamCreateWithFlags(self, stream: Any, flags: int) -> int:
        return self._new("stream", stream)

    def do_EventRecord(self, event: Any, stream: Any) -> int:
        self.times[event.value] = self.now_s
        return 0

    def do_EventSynchronize(self, event: Any) -> int:
        return 0

    def do_EventElapsedTime(self, place: Any, begin: Any, end: Any) -> int:
        place._obj.value = (self.times[end.value] - self.times[begin.value]) * 1e3
        return 0

    def do_StreamBeginCapture(self, stream: Any, mode: int) -> int:
        assert self.capturing is None
        self.capturing = []
        return 0

    def do_StreamEndCapture(self, stream: Any, graph: Any) -> int:
        assert self.capturing is not None
        captured, self.capturing = self.capturing, None
        self._new("graph", graph)
        self.graphs[graph._obj.value] = captured
        return 0

    def do_GraphGetNodes(self, graph: Any, nodes: None, count: Any) -> int:
        count._obj.value = len(self.graphs[graph.value])
        return 0

    def do_GraphInstantiate(self, ready: Any, graph: Any, flags: Any) -> int:
        self._new("ready", ready)
        self.graphs[ready._obj.value] = self.graphs[graph.value]
        return 0

    def do_GraphLaunch(self, ready: Any, stream: Any) -> int:
        assert self.made[ready.value] == "ready"
        self.launched.append(ready.value)
        self.now_s += BEGINNING_S + sum(self.graphs[ready.value])
        return 0

    def do_StreamSynchronize(self, stream: Any) -> int:
        return 0

    def do_GraphExecDestroy(self, ready: Any) -> int:
        return 0 if self.made.pop(ready.value) == "ready" else 1

    def do_GraphDestroy(self, graph: Any) -> int:
        return 0 if self.made.pop(graph.value) == "graph" else 1

    def do_GetLastError(self) -> int:
        return 0

    def do_GetErrorString(self, code: int) -> bytes:
        return self.errors[code]


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
def clock(runtime: Runtime) -> Clock:
    return Clock(runtime, runtime.on_stream)


def several(call: Callable[[], None], number: int) -> Callable[[], None]:
    def calls() -> None:
        for _ in range(number):
            call()

    return calls


def test_what_takes_long_is_timed_as_it_is_called(runtime: Runtime, clock: Clock) -> None:
    taken = clock.seconds(several(lambda: runtime.kernel(2e-2), 10), 10)
    assert taken == pytest.approx(10 * 2e-2, rel=1e-4)
    assert runtime.launched == [None] * 10, "called once, and not replayed"


def test_what_is_over_before_the_next_is_begun_is_replayed(runtime: Runtime, clock: Clock) -> None:
    taken = clock.seconds(several(lambda: runtime.kernel(2e-6), 50), 50)
    assert taken == pytest.approx(50 * 2e-6 + BEGINNING_S, rel=1e-4), "and not fifty times five"
    first, second = runtime.launched[50:]
    assert first == second, "one launch before the one that is timed"
    assert set(runtime.made.values()) == {"event", "stream"}, "nothing is left"


def test_what_cannot_be_captured_is_timed_as_it_is_called(runtime: Runtime, clock: Clock) -> None:
    taken = clock.seconds(several(runtime.wait, 4), 4)
    assert taken == pytest.approx(4 * BEGINNING_S, rel=1e-4)
    assert runtime.capturing is None
    assert clock.seconds(several(lambda: runtime.kernel(2e-6), 50), 50) < 50 * 3e-6


def test_what_goes_to_another_stream_is_timed_as_it_is_called(
    runtime: Runtime, clock: Clock
) -> None:
    """And no empty graph in its place."""
    assert clock.seconds(several(runtime.copy, 4), 4) == pytest.approx(4 * 4e-5, rel=1e-4)
    assert clock.as_called(several(runtime.copy, 4)) == pytest.approx(4 * 4e-5, rel=1e-4)
    assert set(runtime.launched) == {None}
    assert set(runtime.made.values()) == {"event", "stream"}, "nothing is left"


def test_each_time_is_one_of_its_own(runtime: Runtime, clock: Clock) -> None:
    """Of what takes long, what is replayed, and what cannot be."""
    slow = clock.repeated(several(lambda: runtime.kernel(2e-2), 10), 10, 3)
    assert slow == pytest.approx([10 * 2e-2] * 3, rel=1e-4)
    assert runtime.launched == [None] * 30
    short = clock.repeated(several(lambda: runtime.kernel(2e-6), 50), 50, 3)
    assert short == pytest.approx([50 * 2e-6 + BEGINNING_S] * 3, rel=1e-4)
    waiting = clock.repeated(several(runtime.wait, 5), 5, 2)
    assert waiting == pytest.approx([5 * BEGINNING_S] * 2, rel=1e-4)
    assert set(runtime.made.values()) == {"event", "stream"}, "nothing is left"


def test_what_the_runtime_says_is_passed_on(runtime: Runtime, clock: Clock) -> None:
    runtime.cudaEventSynchronize = lambda event: NOT_PERMITTED  # type: ignore[attr-defined]
    with pytest.raises(CudaError, match=r"EventSynchronize: operation not permitted .* \(900\)"):
        clock.seconds(lambda: runtime.kernel(1e-3), 1)


@pytest.mark.tvm
@pytest.mark.parametrize("between", [0, 1 << 20], ids=["alone", "in a model"])
def test_whatever_kernel_runs_on_a_gpu_is_timed_by_it(
    runtime: Runtime, clock: Clock, between: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is timed for itself: the runtime's own loop would time how soon it is begun."""
    from tunefarm.measure import kernel

    class Loaded(dict[str, Any]):
        def time_evaluator(self, *_: Any, number: int, repeat: int) -> Any:
            began = runtime.now_s
            several(self["kernel"], number)()
            times = SimpleNamespace(results=[(runtime.now_s - began) / number] * repeat)
            return lambda *_: times

    monkeypatch.setattr(
        kernel,
        "backend",
        lambda: SimpleNamespace(has_clock=True, device=None, repeated=clock.repeated),
    )
    monkeypatch.setattr(
        kernel.tvm.runtime, "load_module", lambda _: Loaded(kernel=lambda *_: runtime.kernel(1e-6))
    )
    array = TensorSpec("y", (4,), "float32")
    facts = KernelFacts("task", (array,), 8.0, Path("none"), (), between)
    timed = kernel.Kernel(Library(Path("none"), ()), facts)
    samples = timed.sample([[]], 100, 3)
    assert samples == pytest.approx([1e-6 + BEGINNING_S / 100] * 3, rel=1e-4)
    assert len(runtime.launched) == 100 + 1 + 3, "captured once, and begun once untimed"
    launched = len(runtime.launched)
    timed.sample([[], [], []], 100, 2)
    assert len(runtime.launched) == launched + 2 * (100 + 2), "each begins where the last ended"
