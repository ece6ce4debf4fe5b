"""A GPU of paper for tests that run the whole stack: TVM's own CUDA runtime, on stand-ins for
NVIDIA's libraries, in the processes that measure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tvm
from tvm import te, topi

from tunefarm.devices.gpu import completed
from tunefarm.devices.target import Target, make_target, parse_target
from tunefarm.frontend.relax.tir import argument_specs
from tunefarm.measure.build import Builder, BuildOutcome, BuildRequest
from tunefarm.measure.facts import KernelFacts, ScreenOutcome
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import ScreenRequest
from tunefarm.measure.runner import Runner
from tunefarm.search import replay
from tunefarm.search.candidate import UNTUNED

ARCH = "sm_80"
TARGET = completed(parse_target(f"cuda:arch={ARCH}"))
HOST = make_target("llvm", {"num-cores": 2})
PROTOCOL = Protocol(run_limit_s=300.0, run_floor_s=300.0, screen_samples=1, screen_s=1e-6)
"""Emulating takes long, and nobody else is to say so."""
FAST_S = 1e-9
"""What every candidate is far slower than: it is sampled once, for it is not about time here."""


def workload(arguments: list) -> tvm.IRModule:
    function = te.create_prim_func(arguments)
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def product(dtype: str, rows: int = 64, depth: int = 128, columns: int = 64, turned: bool = False):
    """Summed in float32; with `turned` the right operand lies by columns."""
    left = te.placeholder((1, rows, depth), dtype, "a")
    shape = (1, columns, depth) if turned else (1, depth, columns)
    right = te.placeholder(shape, dtype, "b")
    made = topi.nn.batch_matmul(left, right, out_dtype="float32", transpose_b=turned)
    return workload([left, right, made if dtype == "float32" else topi.cast(made, dtype)])


@contextmanager
def stack_on_paper(directory: Path, target: Target = TARGET) -> Iterator[Stack]:
    """A `Stack` whose processes find a GPU of `target`'s architecture."""
    from tunefarm.measure.cuda.emulator.stand_in import environment

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(directory, str(target.get("arch"))).items():
            patch.setenv(name, value)
        made = Stack(directory, target)
        yield made
        made.close()


class Stack:
    """Builds kernels for a GPU of paper and screens them there; what they are to compute, the same
    kernel on the processor says."""

    def __init__(self, directory: Path, target: Target = TARGET) -> None:
        self.directory, self.target = directory, target
        self.builder = Builder(300.0)
        self.host = Runner(2, PROTOCOL.memory_bytes)
        self.gpu = Runner(2, PROTOCOL.memory_bytes, kind="cuda")
        self._count = 0

    def close(self) -> None:
        for one in (self.builder, self.host, self.gpu):
            one.close()

    def kernel(self, module: tvm.IRModule) -> tuple[Path, KernelFacts]:
        """Its file, and facts with a reference made by the processor."""
        self._count += 1
        name = f"k{self._count}"
        path = self.directory / f"{name}.json"
        path.write_text(tvm.ir.save_json(module))
        args = tuple(argument_specs(module["main"]))
        facts = KernelFacts(name, args, 1e6, self.directory / f"{name}.npz")
        built = self.build(path, HOST, UNTUNED)
        assert built.library is not None, built.failure
        made = self.host.screen(ScreenRequest(built.library, facts, PROTOCOL, None, True))
        assert made.failure is None, made.failure
        return path, facts

    def screened(self, kernel: tuple[Path, KernelFacts], trace: str = UNTUNED) -> ScreenOutcome:
        path, facts = kernel
        built = self.build(path, self.target, trace)
        assert built.library is not None, built.failure
        return self.gpu.screen(ScreenRequest(built.library, facts, PROTOCOL, FAST_S))

    def build(self, path: Path, target, trace: str) -> BuildOutcome:
        self._count += 1
        library = self.directory / f"{self._count}.so"
        return self.builder.build(BuildRequest(path, target, trace, library))


def trace_of(module: tvm.IRModule, point: str) -> str:
    """Of a kernel that is written whole, see `replay.in_full`."""
    schedule = replay.new_schedule(module, seed=1)
    replay.mark_complete(schedule, point)
    return replay.trace_json(schedule)


def checked(stack: Stack, module: tvm.IRModule, *points: str) -> None:
    """That the kernel at each of these points computes what it does on the processor."""
    kernel = stack.kernel(module)
    for point in points:
        outcome = stack.screened(kernel, trace_of(module, point))
        assert outcome.failure is None, (outcome.failure, point)
