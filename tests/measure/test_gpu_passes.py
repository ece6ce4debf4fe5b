"""What TVM's lowering for GPUs gets wrong, one schedule each."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytestmark = pytest.mark.tvm


def scheduled(x: Any, y: Any, change: Any) -> Any:
    """A module whose one function `change` has scheduled."""
    import tvm
    from tvm.s_tir import Schedule

    from tests.paper_gpu import workload

    schedule = Schedule(workload([x, y]))
    change(schedule)
    function = schedule.mod["main"].with_attr("tirx.is_scheduled", True)
    return tvm.IRModule({"main": function})


def source(module: Any) -> str:
    import tvm

    from tests.paper_gpu import TARGET
    from tunefarm.measure.cuda import cubin
    from tunefarm.measure.lowering import pipeline
    from tunefarm.search.replay import tvm_target

    built = tvm.tirx.build(module, target=tvm_target(TARGET), pipeline=pipeline(TARGET))
    (device,) = cubin.device_modules(built)
    return str(device.inspect_source())


def test_a_vector_that_is_computed_with_has_a_name_of_its_own() -> None:
    """Else it has that of the last equal text, whatever tensor cores have written there since. What
    is read under a condition stays under it; what is only copied needs no name."""
    import tvm
    from tvm import tirx
    from tvm.ir.expr import Var
    from tvm_ffi import structural_walk

    from tunefarm.measure.cuda.passes import bound_loads

    held, made = (tirx.decl_buffer((64,), "float32", name) for name in ("held", "made"))
    place = tirx.Ramp(tirx.const(0, "int32"), 1, 4)
    given = Var("given", tvm.ir.PrimType("bool"))
    guarded = tirx.if_then_else(given, held[place], made[place])
    values = [held[place] * held[place], guarded + held[place], held[place], held[0] + held[1]]
    stores = [tirx.BufferStore(made, value, [place]) for value in values[:3]]
    stores.append(tirx.BufferStore(made, values[3], [0]))
    function = bound_loads(tirx.PrimFunc([held, made, given], tirx.SeqStmt(stores)))
    names = []
    structural_walk(function.body, (tirx.Bind, lambda bind: names.append(bind.var.name)))
    assert names == ["vector_0", "vector_1", "vector_2"]


def copied(vector: int, turned: bool, beyond: int, across: bool = False) -> str:
    """A tile is copied to shared memory a step ahead, by vectors along its rows, or `across` them:
    with `turned` rows are columns of where it comes from, and there are `beyond` more of its
    columns there."""
    from tvm import te

    rows, columns = 32, 64
    shape = (columns, rows) if turned else (rows, columns + beyond)
    x = te.placeholder(shape, "float16", "x")
    held = te.compute((rows, columns), lambda i, j: x[j, i] if turned else x[i, j], "held")
    y = te.compute((rows, columns), lambda i, j: held[i, j] + te.const(1, "float16"), "y")

    def change(schedule: Any) -> None:
        of = schedule.get_sblock
        row, column = schedule.get_loops(of("y"))
        block, step, inner = schedule.split(row, [1, None, 8])
        schedule.bind(block, "blockIdx.x")
        schedule.compute_at(of("held"), step)
        schedule.set_scope(of("held"), 0, "shared.dyn")
        threads = schedule.fuse(inner, column)
        _, thread = schedule.split(threads, [None, 32])
        schedule.bind(thread, "threadIdx.x")
        loops = schedule.get_loops(of("held"))[2:]
        if across:
            schedule.reorder(*reversed(loops))
            loops = list(reversed(loops))
        fused = schedule.fuse(*loops)
        _, thread, vectors = schedule.split(fused, [None, 32, vector])
        schedule.bind(thread, "threadIdx.x")
        schedule.vectorize(vectors)
        schedule.annotate(step, "software_pipeline_stage", [0, 2])
        schedule.annotate(step, "software_pipeline_order", [0, 1])
        schedule.annotate(step, "software_pipeline_async_stages", [0])

    return source(scheduled(x, y, change))


@pytest.mark.parametrize(
    ("vector", "turned", "beyond", "at_once"),
    [
        (8, False, 0, 16),
        (2, False, 0, 4),
        (8, True, 0, 0),  # a vector's elements lie far apart
        (8, False, 4, 8),  # every other row begins at no multiple of a vector
        (4, False, 4, 8),
        (8, False, 6, 4),
        (8, False, 3, 0),
    ],
)
def test_only_what_lies_together_is_copied_as_a_whole(
    vector: int, turned: bool, beyond: int, at_once: int
) -> None:
    """Bytes of each asynchronous copy; none of two bytes are."""
    code = copied(vector, turned, beyond)
    found = {int(size) for size in re.findall(r"ptx_cp_async_legacy_c[ag]_(\d+)_\w+\(", code)}
    assert found == ({at_once} if at_once else set())


def test_what_is_to_lie_apart_is_not_copied_as_a_whole_either() -> None:
    assert not re.search(r"ptx_cp_async_legacy_c[ag]_\d+_\w+\(", copied(8, True, 0, across=True))


@pytest.mark.parametrize(("rows_apart", "most"), [(4, 4), (16, 8)])
def test_long_vectors_that_turn_a_corner_are_shorter(rows_apart: int, most: int) -> None:
    """Nothing is copied aside here: of eight elements in two rows there would be eight addresses,
    which TVM writes as what is no CUDA."""
    from tvm import te

    rows, columns = 32, 64
    x = te.placeholder((rows, columns), "float16", "x")
    y = te.compute((rows, rows_apart), lambda i, j: x[i, j] * te.const(2, "float16"), "y")

    def change(schedule: Any) -> None:
        fused = schedule.fuse(*schedule.get_loops(schedule.get_sblock("y")))
        thread, vectors = schedule.split(fused, [None, 8])
        block, thread = schedule.split(thread, [1, None])
        schedule.bind(block, "blockIdx.x")
        schedule.bind(thread, "threadIdx.x")
        schedule.vectorize(vectors)

    code = source(scheduled(x, y, change))
    assert "longlong4" not in code
    assert ("uint4" in code) == (most == 8)
