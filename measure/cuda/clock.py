"""The GPU's own clock: CUDA's events, and graphs of calls that end sooner than the next is begun.

A short kernel is over before Python has begun the next one: events around many such calls time
Python. Captured once as a graph, the calls follow one another on the GPU alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

SHORT_S = 1e-2
"""Calls that take less, of the events' time, are replayed. Beginning one takes microseconds, which
is a hundredth of what takes one millisecond, and milliseconds where the host builds candidates
meanwhile and has no core for it right now."""
_NON_BLOCKING = 1
_THREAD_LOCAL = 1
"""Other threads may do as they please while this one's calls are captured."""


class CudaError(RuntimeError):
    """What the runtime said."""


class Clock:
    """Times what is launched.

    Args:
        runtime: CUDA's runtime library.
        on_stream: makes whatever is called inside launch on the stream of that address, instead of
            on the default one.
    """

    def __init__(
        self,
        runtime: Any,
        on_stream: Callable[[Any], AbstractContextManager[Any]],
    ) -> None:
        self._runtime = runtime
        self._on_stream = on_stream
        self._begin, self._end = ctypes.c_void_p(), ctypes.c_void_p()
        self._stream = ctypes.c_void_p()
        for event in (self._begin, self._end):
            self._do("EventCreate", ctypes.byref(event))
        self._do("StreamCreateWithFlags", ctypes.byref(self._stream), _NON_BLOCKING)

    def seconds(self, calls: Callable[[], None], number: int) -> float:
        """That `number` calls take together, from the first one's start to the last one's end."""
        return self.repeated(calls, number, 1)[0]

    def repeated(self, calls: Callable[[], None], number: int, repeat: int) -> list[float]:
        """The same, `repeat` times; what is replayed is captured once."""
        taken = self._between(calls, None)
        graph = None
        if taken < SHORT_S * number:
            try:
                graph = self._captured(calls)
            except Exception:
                # They have just worked: what asks for memory, or waits, cannot be captured, and TVM
                # says so in words of its own.
                graph = None
        if graph is not None and not self._nodes(graph):  # they went to another stream
            self._do("GraphDestroy", graph)
            graph = None
        if graph is None:
            return [taken, *(self._between(calls, None) for _ in range(repeat - 1))]
        try:
            return self._replayed(graph, repeat)
        finally:
            self._do("GraphDestroy", graph)

    def as_called(self, calls: Callable[[], None]) -> float:
        """Seconds that `calls` take together, never replayed: for what goes to the default stream
        whatever stream it is to go to, as copies do."""
        return self._between(calls, None)

    def _between(self, calls: Callable[[], None], stream: Any) -> float:
        self._do("EventRecord", self._begin, stream)
        calls()
        self._do("EventRecord", self._end, stream)
        self._do("EventSynchronize", self._end)
        elapsed_ms = ctypes.c_float()
        self._do("EventElapsedTime", ctypes.byref(elapsed_ms), self._begin, self._end)
        return elapsed_ms.value * 1e-3

    def _captured(self, calls: Callable[[], None]) -> ctypes.c_void_p:
        graph = ctypes.c_void_p()
        self._do("StreamBeginCapture", self._stream, _THREAD_LOCAL)
        complete = False
        try:
            with self._on_stream(self._stream.value):
                calls()
            complete = True
        finally:  # or nothing could be launched on it any more
            self._do("StreamEndCapture", self._stream, ctypes.byref(graph))
            if not complete and graph:
                self._do("GraphDestroy", graph)
        return graph

    def _nodes(self, graph: ctypes.c_void_p) -> int:
        count = ctypes.c_size_t()
        self._do("GraphGetNodes", graph, None, ctypes.byref(count))
        return count.value

    def _replayed(self, graph: ctypes.c_void_p, repeat: int) -> list[float]:
        ready = ctypes.c_void_p()
        no_flags = ctypes.c_ulonglong(0)
        self._do("GraphInstantiate", ctypes.byref(ready), graph, no_flags)
        try:
            self._do("GraphLaunch", ready, self._stream)  # the first one is sent to the GPU as well
            self._do("StreamSynchronize", self._stream)

            def launch() -> None:
                self._do("GraphLaunch", ready, self._stream)

            return [self._between(launch, self._stream) for _ in range(repeat)]
        finally:
            self._do("GraphExecDestroy", ready)

    def _do(self, what: str, *arguments: Any) -> None:
        """Call the runtime's function of that name.

        Raises:
            CudaError: it did not work.
        """
        code = getattr(self._runtime, "cuda" + what)(*arguments)
        if code:
            self._runtime.cudaGetLastError()  # else the next one would be told of it again
            self._runtime.cudaGetErrorString.restype = ctypes.c_char_p
            words = self._runtime.cudaGetErrorString(code) or b"?"
            raise CudaError(f"CUDA: {what}: {words.decode()} ({code})")
