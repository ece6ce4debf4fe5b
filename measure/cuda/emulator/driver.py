"""What the stand-ins for NVIDIA's libraries lead to: a machine of paper in this process.

As on a GPU, a fault is told at the next call, and from then on at every one: the process is of no
use any more.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunefarm.devices.device import EMULATED
from tunefarm.measure.cuda.compiler import PTX_DIRECTORY
from tunefarm.measure.cuda.emulator.addresses import LaunchConfig, image_at, put
from tunefarm.measure.cuda.emulator.stand_in import FUNCTIONS, GONE, GPU, TABLE

INVALID, NOT_FOUND, NOT_PERMITTED, ILLEGAL_ADDRESS, NO_MEMORY = 1, 500, 900, 700, 2
UNAVAILABLE = 46
_WORDS = {
    NOT_FOUND: f"{PTX_DIRECTORY} has no PTX of it: was it set when it was built?".encode(),
    NO_MEMORY: b"out of memory",
    UNAVAILABLE: b"the GPU of paper has fallen off its bus",
}
UUID = bytes(range(16))
_CUDA = 13000
_MEMORY = 4 << 30
_L2 = 4 << 20
_MULTIPROCESSORS = 4
_TFLOAT32 = 11
_ELEMENTS = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, _TFLOAT32: 4}
"""Bytes of an element, by the driver's number of its type (``CUtensorMapDataType``)."""
_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


def install() -> None:
    """Lead the stand-ins to this process's machine, if it is to have one: an interpreter's start
    calls it."""
    if GPU not in os.environ or sys.flags.isolated:
        return
    gpu = Driver(os.environ[GPU])
    for library, names in FUNCTIONS.items():
        try:
            loaded = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            table = (_P * len(names)).in_dll(loaded, TABLE)
        except (OSError, ValueError):
            return
        atexit.register(_let_go, table, list(table))
        for number, name in enumerate(names):
            function = gpu.callback(name)
            _KEPT.append(function)
            table[number] = ctypes.cast(function, _P).value


_KEPT: list[Any] = []


def _let_go(table: Any, before: list[int]) -> None:
    """What is freed after the interpreter's end is no business of Python's."""
    for number, place in enumerate(before):
        table[number] = place


class Driver:
    """One GPU of `arch`; its functions are those of NVIDIA's libraries, by their names."""

    def __init__(self, arch: str) -> None:
        number = int(arch.removeprefix("sm_").rstrip("a"))
        self._arch = divmod(number, 10)
        self._numbers = itertools.count(0x1000)
        self._modules: dict[int, Any] = {}
        self._functions: dict[int, tuple[Any, str]] = {}
        self._events: dict[int, float] = {}
        self._graphs: dict[int, list[Callable[[], None]]] = {}
        self._capturing: dict[int, list[Callable[[], None]]] = {}
        self._hosts: dict[int, Any] = {}
        self._machine: Any = None
        self._failed: tuple[int, bytes] | None = None
        self._last = 0
        self._said: dict[bytes, Any] = {}

    def callback(self, name: str) -> Any:
        function, types, returns = getattr(self, name), _TYPES[name], _I
        if name in ("cudaGetErrorName", "cudaGetErrorString"):
            return ctypes.CFUNCTYPE(_P, *types)(function)

        def called(*arguments: Any) -> int:
            if self._is_gone():
                return UNAVAILABLE
            if self._failed is not None and name.startswith(("cudaM", "cudaS", "cudaE", "cuL")):
                return self._failed[0]
            try:
                code = int(function(*arguments) or 0)
            except Exception as error:  # nothing of Python's may pass through C
                print(f"GPU of paper: {name}: {error!r}", file=sys.stderr)
                code = INVALID
            if name.startswith("cuda") and name not in ("cudaGetLastError", "cudaPeekAtLastError"):
                self._last = code or self._last
            return code

        return ctypes.CFUNCTYPE(returns, *types)(called)

    @staticmethod
    def _is_gone() -> bool:
        """As a GPU is that has fallen off its bus: for all processes, whatever they ask."""
        return os.path.exists(os.environ.get(GONE, ""))

    @property
    def machine(self) -> Any:
        if self._machine is None:
            from tunefarm.measure.cuda.emulator.machine import Machine

            self._machine = Machine(memory_bytes=_MEMORY)
        return self._machine

    # -------------------------------------------------------------------------- the device

    def cuInit(self, _flags: int) -> None:
        return None

    def cuGetExportTable(self, _place: int, _which: int) -> int:
        """NVIDIA's compiler asks a driver for more than is published, and goes without."""
        return NOT_FOUND

    def cuDriverGetVersion(self, place: int) -> None:
        put(place, _I, _CUDA)

    def cuDeviceGetCount(self, place: int) -> None:
        put(place, _I, 1)

    cudaGetDeviceCount = cuDeviceGetCount

    def cuDeviceGet(self, place: int, number: int) -> None:
        put(place, _I, number)

    def cuDeviceGetName(self, place: int, length: int, _device: int) -> None:
        ctypes.memmove(place, EMULATED.encode() + b"\0", min(length, len(EMULATED) + 1))

    def cuDeviceGetUuid_v2(self, place: int, _device: int) -> None:
        ctypes.memmove(place, UUID, len(UUID))

    def cuDeviceGetAttribute(self, place: int, which: int, _device: int) -> None:
        known = {
            1: 1024,
            2: 1024,
            3: 1024,
            4: 64,
            5: 2**31 - 1,
            6: 65535,
            7: 65535,
            8: 48 << 10,
            10: 32,
            12: 65536,
            13: 1_000_000,
            16: _MULTIPROCESSORS,
            38: _L2,
            75: self._arch[0],
            76: self._arch[1],
            97: 227 << 10,
        }
        put(place, _I, known.get(which, 0))

    cudaDeviceGetAttribute = cuDeviceGetAttribute

    def cudaGetDevice(self, place: int) -> None:
        put(place, _I, 0)

    def cudaSetDevice(self, number: int) -> int:
        return 0 if number == 0 else 101

    def cudaGetDeviceProperties(self, place: int, _device: int) -> None:
        """Its name, its memory and its architecture: what TVM reads of it."""
        ctypes.memset(place, 0, 296)
        ctypes.memmove(place, EMULATED.encode(), len(EMULATED))
        put(place + 288, _L, _MEMORY)

    def cudaMemGetInfo(self, free: int, total: int) -> None:
        put(free, _L, _MEMORY)
        put(total, _L, _MEMORY)

    # ------------------------------------------------------------------------------ memory

    def cudaMalloc(self, place: int, size: int) -> int:
        try:
            put(place, _P, self.machine.memory.allocate(size))
        except MemoryError:
            return NO_MEMORY
        return 0

    def cudaFree(self, address: int | None) -> None:
        if address:
            self.machine.memory.free(address)

    def cudaMallocHost(self, place: int, size: int) -> None:
        held = ctypes.create_string_buffer(size)
        self._hosts[ctypes.addressof(held)] = held
        put(place, _P, ctypes.addressof(held))

    def cudaFreeHost(self, address: int) -> None:
        self._hosts.pop(address, None)

    def cudaMemcpyAsync(self, to: int, of: int, size: int, _kind: int, stream: int | None) -> None:
        self._do(lambda: self._copy(to, of, size), stream)

    def cudaMemcpyPeerAsync(
        self, to: int, _there: int, of: int, _here: int, size: int, stream: int | None
    ) -> None:
        self._do(lambda: self._copy(to, of, size), stream)

    def _copy(self, to: int, of: int, size: int) -> None:
        import numpy as np

        from tunefarm.measure.cuda.emulator.memory import GLOBAL

        def bytes_at(address: int) -> Any:
            if GLOBAL <= address < 2 * GLOBAL:
                return self.machine.memory.span(address, size)
            return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))

        if size:
            bytes_at(to)[:] = bytes_at(of)

    # ----------------------------------------------------------------------------- kernels

    def cuModuleLoadData(self, place: int, image: int) -> int:
        from tunefarm.measure.cuda.emulator.ptx import parse

        code = image_at(image)
        if code[:4] == b"\x7fELF":
            name = hashlib.sha256(code).hexdigest()
            file = Path(os.environ[PTX_DIRECTORY]) / f"{name}.ptx"
            if not file.exists():
                return NOT_FOUND
            code = file.read_bytes()
        number = next(self._numbers)
        self._modules[number] = parse(code.decode())
        put(place, _P, number)
        return 0

    def cuModuleUnload(self, module: int) -> None:
        gone = self._modules.pop(module, None)
        if gone is not None:
            self._functions = {n: f for n, f in self._functions.items() if f[0] is not gone}
            self.machine.unload(gone)

    def cuModuleGetFunction(self, place: int, module: int, name: bytes) -> int:
        if name.decode() not in self._modules[module].kernels:
            return NOT_FOUND
        number = next(self._numbers)
        self._functions[number] = (self._modules[module], name.decode())
        put(place, _P, number)
        return 0

    def cuFuncSetAttribute(self, _function: int, _which: int, _value: int) -> None:
        return None

    def cuLaunchKernelEx(self, config: int, function: int, parameters: int, _extra: int) -> None:
        given = LaunchConfig.from_address(config)
        module, name = self._functions[function]
        kernel = module.kernels[name]
        places = (_P * len(kernel.parameters)).from_address(parameters)
        arguments = [
            ctypes.string_at(place, size)
            for place, (_, size) in zip(places, kernel.parameters, strict=True)
        ]
        grid = (given.gridx, given.gridy, given.gridz)
        block = (given.blockx, given.blocky, given.blockz)
        shared = given.shared_bytes

        self._do(
            lambda: self.machine.launch(module, name, grid, block, arguments, shared), given.stream
        )

    def cuTensorMapEncodeTiled(
        self, place: int, kind: int, rank: int, address: int, extents: int, strides: int,
        box: int, steps: int, interleave: int, swizzle: int, _promotion: int, fill: int,
    ) -> int:  # fmt: skip
        from tunefarm.measure.cuda.emulator.engine import MAP_BYTES, TensorMap

        def read(at: int, of: Any, count: int) -> tuple[int, ...]:
            return tuple((of * count).from_address(at)) if count else ()

        wide, short = ctypes.c_uint64, ctypes.c_uint32
        if interleave or fill or set(read(steps, short, rank)) != {1} or place % 64:
            return INVALID
        try:
            made = TensorMap(
                _ELEMENTS[kind], address, read(extents, wide, rank),
                read(strides, wide, rank - 1), read(box, short, rank), swizzle, kind == _TFLOAT32,
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            print(f"GPU of paper: {error}", file=sys.stderr)
            return INVALID
        ctypes.memmove(place, made.packed(), MAP_BYTES)
        return 0

    def _do(self, what: Callable[[], None], stream: int | None) -> None:
        if stream in self._capturing:
            self._capturing[stream].append(what)
        elif self._failed is None:
            self._now(what)

    def _now(self, what: Callable[[], None]) -> None:
        from tunefarm.measure.cuda.emulator.faults import EmulatorError

        try:
            what()
        except EmulatorError as error:
            words = f"{type(error).__name__}: {error}"
            self._failed = (ILLEGAL_ADDRESS, words.encode())
            print(f"GPU of paper: {words}", file=sys.stderr)

    def cuGetErrorName(self, code: int, place: int) -> None:
        put(place, _P, self.cudaGetErrorName(code))

    cuGetErrorString = cuGetErrorName

    def cudaGetErrorName(self, code: int) -> int:
        """The address of words, which stay where they are."""
        failed = _WORDS.get(code, b"refused by a GPU of paper")
        failed = self._failed[1] if self._failed is not None else failed
        if failed not in self._said:
            self._said[failed] = ctypes.create_string_buffer(failed)
        return ctypes.addressof(self._said[failed])

    cudaGetErrorString = cudaGetErrorName

    def cudaGetLastError(self) -> int:
        last, self._last = self.cudaPeekAtLastError(), 0
        return last

    def cudaPeekAtLastError(self) -> int:
        return self._failed[0] if self._failed is not None else self._last

    # ------------------------------------------------------------- streams, events, graphs

    def _new(self, place: int) -> int:
        number = next(self._numbers)
        put(place, _P, number)
        return number

    def cudaStreamCreate(self, place: int, _flags: int = 0) -> None:
        self._new(place)

    cudaStreamCreateWithFlags = cudaEventCreate = cudaStreamCreate

    def cudaStreamDestroy(self, _stream: int) -> None:
        return None

    def cudaStreamSynchronize(self, stream: int | None) -> int:
        if self._capturing:  # by any thread's call, where capturing is not relaxed
            return NOT_PERMITTED
        return self._failed[0] if self._failed is not None else 0

    def cudaStreamWaitEvent(self, _stream: int, _event: int, _flags: int) -> None:
        return None

    def cudaEventDestroy(self, event: int) -> None:
        self._events.pop(event, None)

    def cudaEventRecord(self, event: int, _stream: int | None) -> None:
        self._events[event] = time.perf_counter()  # what emulating takes, and no GPU

    def cudaEventSynchronize(self, _event: int) -> int:
        return self._failed[0] if self._failed is not None else 0

    def cudaEventElapsedTime(self, place: int, begin: int, end: int) -> None:
        elapsed_s = self._events[end] - self._events[begin]
        put(place, ctypes.c_float, elapsed_s * 1e3)

    def cudaStreamBeginCapture(self, stream: int, _mode: int) -> None:
        self._capturing[stream] = []

    def cudaStreamEndCapture(self, stream: int, place: int) -> None:
        self._graphs[self._new(place)] = self._capturing.pop(stream)

    def cudaGraphGetNodes(self, graph: int, _nodes: int, place: int) -> None:
        put(place, ctypes.c_size_t, len(self._graphs[graph]))

    def cudaGraphInstantiate(self, place: int, graph: int, _flags: int) -> None:
        self._graphs[self._new(place)] = self._graphs[graph]

    def cudaGraphLaunch(self, graph: int, _stream: int) -> None:
        for what in self._graphs[graph]:
            if self._failed is None:
                self._now(what)

    def cudaGraphDestroy(self, graph: int) -> None:
        self._graphs.pop(graph, None)

    cudaGraphExecDestroy = cudaGraphDestroy

    # ------------------------------------------------------------------ its management library

    def nvmlInit_v2(self) -> None:
        return None

    def nvmlDeviceGetHandleByUUID(self, _uuid: bytes, place: int) -> None:
        put(place, _P, 1)

    def nvmlDeviceGetClockInfo(self, _device: int, _which: int, place: int) -> None:
        put(place, ctypes.c_uint, 1000)

    def nvmlDeviceGetTemperature(self, _device: int, _sensor: int, place: int) -> None:
        put(place, ctypes.c_uint, 40)

    def nvmlDeviceGetPowerUsage(self, _device: int, place: int) -> None:
        put(place, ctypes.c_uint, 50_000)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _device: int, place: int) -> None:
        put(place, ctypes.c_ulonglong, 0)


_STREAM = (_P,)
_TYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuGetExportTable": (_P, _P),
    "cuDriverGetVersion": (_P,),
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, _I),
    "cuDeviceGetName": (_P, _I, _I),
    "cuDeviceGetAttribute": (_P, _I, _I),
    "cuDeviceGetUuid_v2": (_P, _I),
    "cuModuleLoadData": (_P, _P),
    "cuModuleUnload": (_P,),
    "cuModuleGetFunction": (_P, _P, ctypes.c_char_p),
    "cuFuncSetAttribute": (_P, _I, _I),
    "cuLaunchKernelEx": (_P, _P, _P, _P),
    "cuGetErrorName": (_I, _P),
    "cuGetErrorString": (_I, _P),
    "cuTensorMapEncodeTiled": (_P, _I, ctypes.c_uint, *[_P] * 5, *[_I] * 4),
    "cudaGetDeviceCount": (_P,),
    "cudaGetDevice": (_P,),
    "cudaSetDevice": (_I,),
    "cudaDeviceGetAttribute": (_P, _I, _I),
    "cudaGetDeviceProperties": (_P, _I),
    "cudaMemGetInfo": (_P, _P),
    "cudaMalloc": (_P, _L),
    "cudaFree": (_P,),
    "cudaMallocHost": (_P, _L),
    "cudaFreeHost": (_P,),
    "cudaMemcpyAsync": (_P, _P, _L, _I, _P),
    "cudaMemcpyPeerAsync": (_P, _I, _P, _I, _L, _P),
    "cudaGetLastError": (),
    "cudaPeekAtLastError": (),
    "cudaGetErrorName": (_I,),
    "cudaGetErrorString": (_I,),
    "cudaEventCreate": (_P,),
    "cudaEventDestroy": _STREAM,
    "cudaEventRecord": (_P, _P),
    "cudaEventSynchronize": _STREAM,
    "cudaEventElapsedTime": (_P, _P, _P),
    "cudaStreamCreate": (_P,),
    "cudaStreamCreateWithFlags": (_P, ctypes.c_uint),
    "cudaStreamDestroy": _STREAM,
    "cudaStreamSynchronize": _STREAM,
    "cudaStreamWaitEvent": (_P, _P, ctypes.c_uint),
    "cudaStreamBeginCapture": (_P, _I),
    "cudaStreamEndCapture": (_P, _P),
    "cudaGraphGetNodes": (_P, _P, _P),
    "cudaGraphInstantiate": (_P, _P, ctypes.c_ulonglong),
    "cudaGraphLaunch": (_P, _P),
    "cudaGraphDestroy": _STREAM,
    "cudaGraphExecDestroy": _STREAM,
    "nvmlInit_v2": (),
    "nvmlDeviceGetHandleByUUID": (ctypes.c_char_p, _P),
    "nvmlDeviceGetClockInfo": (_P, _I, _P),
    "nvmlDeviceGetTemperature": (_P, _I, _P),
    "nvmlDeviceGetPowerUsage": (_P, _P),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (_P, _P),
}
