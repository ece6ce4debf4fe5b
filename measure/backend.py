"""What a process measures on, the processor or a GPU: where arrays lie, when a call is over, and
whose clock times it. Needs the TVM runtime alone."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numpy as np
import tvm
import tvm_ffi

from tunefarm.devices.cpu import cache_sizes, usable_cores
from tunefarm.devices.cuda_runtime import LIBRARY, load_cuda_runtime
from tunefarm.devices.gpu_driver import KIND, driver
from tunefarm.measure.cuda.clock import Clock
from tunefarm.measure.pinning import pin_caller

_CANARY_BYTES = 64 << 20
_CANARY_COPIES = 16
_SETTLE_S = 0.25
"""Twice as long as the runtime's threads look out for work."""


class Backend(Protocol):
    """One device of this machine.

    Attributes:
        device: TVM's.
        has_clock: of its own: calls return before they are done. The runtime's own loop would time
            how soon short ones are begun.
    """

    device: Any
    has_clock: bool

    def caches(self) -> tuple[int, int]:
        """Bytes of what is near (all cores' own), and of the last one, which is shared."""
        ...

    def after_kernel(self) -> None:
        """Called once a kernel was called; it is over then.

        Raises:
            Exception: what it did that it may not; the process is of no use after it.
        """
        ...

    def seconds(self, calls: Callable[[], None], number: int) -> float:
        """That `calls`, `number` of them, take together."""
        ...

    def repeated(self, calls: Callable[[], None], number: int, repeat: int) -> list[float]:
        """The same, `repeat` times."""
        ...

    def canary(self) -> float:
        """Median seconds of a fixed small piece of work."""
        ...

    def conditions(self) -> dict[str, float | str]:
        """Clocks, temperature and the like, right now; empty where nobody tells."""
        ...


class Processor:
    """The processor: a call is over when it returns."""

    has_clock = False

    def __init__(self) -> None:
        self.device = tvm.cpu()

    def caches(self) -> tuple[int, int]:
        _, second, third = cache_sizes()
        return usable_cores() * second, third

    def after_kernel(self) -> None:
        pin_caller()  # a whole model is timed as its users run it, kernels are timed alone

    def seconds(self, calls: Callable[[], None], number: int) -> float:
        started = time.perf_counter()
        calls()
        return time.perf_counter() - started

    def repeated(self, calls: Callable[[], None], number: int, repeat: int) -> list[float]:
        return [self.seconds(calls, number) for _ in range(repeat)]

    def canary(self) -> float:
        # After a kernel the runtime's threads keep their cores for a while, in case of another one.
        time.sleep(_SETTLE_S)
        generator = np.random.default_rng(0)
        left, right = (generator.random((384, 384), dtype=np.float32) for _ in range(2))
        return _median([self.seconds(lambda: _ignore(left @ right), 1) for _ in range(7)])

    def conditions(self) -> dict[str, float | str]:
        return {}


class Gpu:
    """The first GPU that this process sees: calls return before they are done, and its own clock
    times them."""

    has_clock = True

    def __init__(self) -> None:
        load_cuda_runtime()
        self.device = tvm.cuda(0)
        # TVM's runtime has loaded it. On its default stream TVM launches.
        runtime = ctypes.CDLL(LIBRARY)
        self._clock = Clock(runtime, lambda stream: tvm_ffi.use_raw_stream(self.device, stream))
        self._copied: tuple[Any, Any] | None = None
        self._try()

    def _try(self) -> None:
        """That it takes what it is given, moves it, and gives it back.

        Raises:
            Exception: it does not.
        """
        given = np.arange(1024, dtype="int32")
        there = [tvm.runtime.empty(given.shape, "int32", self.device) for _ in range(2)]
        there[0].copyfrom(given).copyto(there[1])
        self.device.sync()
        if not np.array_equal(there[1].numpy(), given):
            raise OSError("the GPU does not give back what it was given")

    def caches(self) -> tuple[int, int]:
        size = int(getattr(self.device, "l2_cache_size_bytes", 0) or 0) or 64 << 20
        return 0, size  # what a multiprocessor has for itself does not outlive a kernel

    def after_kernel(self) -> None:
        self.device.sync()

    def seconds(self, calls: Callable[[], None], number: int) -> float:
        return self._clock.seconds(calls, number)

    def repeated(self, calls: Callable[[], None], number: int, repeat: int) -> list[float]:
        return self._clock.repeated(calls, number, repeat)

    def canary(self) -> float:
        """Of a copy inside its memory, of several that follow one another."""
        if self._copied is None:
            shape = (_CANARY_BYTES,)
            made = [tvm.runtime.empty(shape, "uint8", self.device) for _ in range(2)]
            self._copied = (made[0], made[1])
        source, target = self._copied

        def copies() -> None:
            for _ in range(_CANARY_COPIES):
                source.copyto(target)

        copies()
        return _median([self._clock.as_called(copies) for _ in range(7)]) / _CANARY_COPIES

    def conditions(self) -> dict[str, float | str]:
        return nvml_conditions()


def _ignore(_: Any) -> None:
    """For its effect."""


def _median(times: list[float]) -> float:
    return float(np.median(times))


@cache
def backend(kind: str | None = None) -> Backend:
    """Of this process: of the `kind` that its parent named, or the processor."""
    kind = kind or os.environ.get(KIND, "llvm")
    return Gpu() if kind == "cuda" else Processor()


_NVML_CLOCKS = {"clock_sm_mhz": 1, "clock_memory_mhz": 2}


def nvml_conditions() -> dict[str, float | str]:
    """Of the first GPU that this process sees, from the driver's management library, which sees all
    of them; empty where there is none."""
    here = driver()
    if here is None or not here.gpus:
        return {}
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2():
            return {}
        handle = ctypes.c_void_p()
        uuid = here.gpus[0].uuid.encode()
        if nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)):
            return {}
    except (OSError, AttributeError):
        return {}
    found: dict[str, float | str] = {}
    number, many = ctypes.c_uint(), ctypes.c_ulonglong()
    for name, which in _NVML_CLOCKS.items():
        if not nvml.nvmlDeviceGetClockInfo(handle, which, ctypes.byref(number)):
            found[name] = number.value
    if not nvml.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(number)):
        found["temperature_c"] = number.value
    if not nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(number)):
        found["power_w"] = number.value / 1e3
    if not nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(many)):
        found["throttle_reasons"] = hex(many.value)
    return found
