"""A plugin whose schedules are faulty: they crash, hang, compute nonsense, or eat all memory.

It is used the way a user's plugin is (``TUNEFARM_PLUGINS=tests.plugins.faults``): it registers
tensor intrinsics and a family of schedules that tensorises a 16x16x16 matmul with them. The traces
apply and compile like any other; what they do when they run is the fault.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from tunefarm.devices.target import Target
from tunefarm.frontend.relax.tir import argument_specs
from tunefarm.search import replay
from tunefarm.search.space import Knob, Modelled, Point, Proposal
from tunefarm.search.spaces import register_space
from tunefarm.search.spaces.features import STORES


@T.prim_func(s_tir=True)
def description(
    A: T.Buffer((16, 16), "float32", offset_factor=1),
    B: T.Buffer((16, 16), "float32", offset_factor=1),
    C: T.Buffer((16, 16), "float32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:16, 0:16], A[0:16, 0:16], B[0:16, 0:16])
        T.writes(C[0:16, 0:16])
        for i, j, k in T.grid(16, 16, 16):
            with T.sblock("update"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func(s_tir=True)
def crash(
    A: T.Buffer((16, 16), "float32", offset_factor=1),
    B: T.Buffer((16, 16), "float32", offset_factor=1),
    C: T.Buffer((16, 16), "float32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:16, 0:16], A[0:16, 0:16], B[0:16, 0:16])
        T.writes(C[0:16, 0:16])
        T.evaluate(T.call_extern("int32", "raise", 11))


@T.prim_func(s_tir=True)
def hang(
    A: T.Buffer((16, 16), "float32", offset_factor=1),
    B: T.Buffer((16, 16), "float32", offset_factor=1),
    C: T.Buffer((16, 16), "float32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:16, 0:16], A[0:16, 0:16], B[0:16, 0:16])
        T.writes(C[0:16, 0:16])
        T.evaluate(T.call_extern("int32", "sleep", 3600))


@T.prim_func(s_tir=True)
def wrong(
    A: T.Buffer((16, 16), "float32", offset_factor=1),
    B: T.Buffer((16, 16), "float32", offset_factor=1),
    C: T.Buffer((16, 16), "float32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:16, 0:16], A[0:16, 0:16], B[0:16, 0:16])
        T.writes(C[0:16, 0:16])
        for i, j in T.grid(16, 16):
            C[i, j] = A[i, j] * B[i, j]


@T.prim_func(s_tir=True)
def hungry(
    A: T.Buffer((16, 16), "float32", offset_factor=1),
    B: T.Buffer((16, 16), "float32", offset_factor=1),
    C: T.Buffer((16, 16), "float32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:16, 0:16], A[0:16, 0:16], B[0:16, 0:16])
        T.writes(C[0:16, 0:16])
        big = T.alloc_buffer((2**34,), "float32")
        for i in T.serial(0, 2**34):
            big[i] = A[0, 0]
        C[0, 0] = big[2**33]


KINDS = {"crash": crash, "hang": hang, "wrong": wrong, "hungry": hungry}
for _name, _implementation in KINDS.items():
    TensorIntrin.register(f"tests.{_name}", description, _implementation, override=True)


class FaultySpace:
    """One sketch without knobs per kind of fault."""

    def __init__(self, workload: Any) -> None:
        self._workload = workload

    @property
    def sketches(self) -> tuple[tuple[Knob, ...], ...]:
        return tuple(() for _ in KINDS)

    def modelled(self) -> tuple[Modelled, ...]:
        return ()

    def describe(self, point: Point) -> None:
        return None

    def realise(self, point: Point, seed: int) -> Proposal | None:
        kind = list(KINDS)[point.sketch]
        schedule = replay.new_schedule(self._workload, seed=1)
        block = schedule.get_sblock("matmul")
        i, _, _ = schedule.get_loops(block)[-3:]
        update = schedule.decompose_reduction(block, i)
        del update
        schedule.tensorize(
            schedule.get_loops(schedule.get_sblock("matmul_update"))[-3], f"tests.{kind}"
        )
        return Proposal(point, replay.trace_json(schedule), np.full(STORES, float(point.sketch)))

    def locate(self, trace: str) -> Point | None:
        for sketch in range(len(KINDS)):
            proposal = self.realise(Point(sketch, ()), 0)
            if proposal is not None and proposal.trace == trace:
                return proposal.point
        return None


def faulty_space(workload: Any, _target: Target) -> FaultySpace | None:
    """For kernels that are one 16x16x16 matmul."""
    shapes = [spec.shape for spec in argument_specs(workload["main"])]
    return FaultySpace(workload) if shapes == [(16, 16)] * 3 else None


register_space("faults", faulty_space)
