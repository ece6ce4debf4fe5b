"""Stores that pass the caches by, for results that no cache would hold until they are read.

A plain store reads the line that it is about to overwrite; one that is told that nobody will ask
for the line soon does not, which saves a third of the traffic of a kernel that reads one array and
writes one. TensorIR has no such store. A loop over a vector is annotated, in the trace as well, and
`streaming` lets it put the vector together in a register and hand that to a function in LLVM's own
language, which the compiler puts in its place.

Such stores become visible to other cores in no particular order. Each of the kernel's threads
drains its own when it tells the calling one, by an atomic operation, that it is done; the calling
one does at the kernel's end.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir.expr import StringImm
from tvm.s_tir import SBlock, SBlockRealize
from tvm_ffi import structural_map, structural_walk

from tunefarm.search.kernels.splice import renamed, without_note
from tunefarm.search.spaces.form import Stage

KEY = "tunefarm.stream"
"""Of an annotated loop, and of a function that has had one."""
LARGE = 32 << 20
"""Bytes of a result from which on it is worth a try: a smaller one may still be in a shared cache
when the next kernel reads it, which a kernel timed by itself does not show. (There are processors
with larger ones.)"""
DRAIN = "tunefarm_drain"

_FUNCTION = """
define linkonce_odr void @{name}(ptr %to, ptr %from) alwaysinline {{
  %vector = load <{lanes} x float>, ptr %from, align {bytes}
  store <{lanes} x float> %vector, ptr %to, align {bytes}, !nontemporal !0
  ret void
}}
define linkonce_odr void @{drain}() alwaysinline {{
  fence seq_cst
  ret void
}}
!0 = !{{i32 1}}
"""


def stream_stores(schedule: Any, lane: Any) -> None:
    """Let the vectorised loop `lane`, which encloses one block, store past the caches. Its vectors
    must lie at multiples of their own length, and hold floats."""
    schedule.annotate(lane, KEY, True)


def streaming(function: Any) -> Any:
    """A scheduled kernel with the stores that its loops are annotated with."""
    lengths: set[int] = set()

    def streamed(loop: Any) -> Any:
        if KEY not in loop.annotations:
            return loop
        lengths.add(int(loop.extent))
        return _streamed(loop)

    root = structural_map(function.body, (tirx.For, streamed))
    for lanes in sorted(lengths):
        text = _FUNCTION.format(name=_name(lanes), lanes=lanes, bytes=4 * lanes, drain=DRAIN)
        root = _inside(root, text)
    return function.with_body(root).with_attr(KEY, max(lengths))


def may_stream(stage: Stage) -> bool:
    """Whether what `stage` writes, vector after vector, is floats, and too large for caches."""
    return str(stage.node.writes[0].source.dtype) == "float32" and 4 * stage.points >= LARGE


def streams(function: Any) -> int:
    """Elements of the longest vector that a kernel stores so, 0 for none: moved elsewhere, its
    result must still lie at multiples of that."""
    return int((function.attrs or {}).get(KEY, 0))


def _name(lanes: int) -> str:
    return f"tunefarm_stream_{lanes}"


def _inside(root: Any, text: str) -> Any:
    """The root block with functions of LLVM's language in scope, its stores drained at the end."""
    block, drain = root.block, tirx.Evaluate(tirx.call_extern("void", DRAIN))
    whole = tirx.SeqStmt([block.body, drain])
    body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", StringImm(text), whole)
    with_text = SBlock([], [], [], block.name_hint, body, alloc_buffers=block.alloc_buffers)
    return SBlockRealize([], root.predicate, with_text)


def _streamed(loop: Any) -> Any:
    realizes: list[Any] = []
    structural_walk(loop.body, (SBlockRealize, realizes.append))
    (realize,) = realizes
    axes = [variable.var for variable in realize.block.iter_vars]
    values = dict(zip(axes, realize.iter_values, strict=True))
    store, lanes = realize.block.body, int(loop.extent)
    vector = tirx.decl_buffer((lanes,), "float32", "streamed", scope="local")
    kept = tirx.BufferStore(vector, renamed(store.value, values), [loop.loop_var])
    fill = without_note(loop, KEY, kept)
    first = {loop.loop_var: loop.min}
    there = [renamed(renamed(index, values), first) for index in store.indices]
    flush = tirx.Evaluate(
        tirx.call_extern(
            "void",
            _name(lanes),
            tirx.address_of(tirx.BufferLoad(store.buffer, there)),
            tirx.address_of(tirx.BufferLoad(vector, [tirx.const(0, "int64")])),
        )
    )
    block = SBlock([], [], [], "streamed", tirx.SeqStmt([fill, flush]), alloc_buffers=[vector])
    # Of a vector beyond the end nothing is stored; none lies across it, for vectors divide rows.
    return SBlockRealize([], renamed(realize.predicate, first), block)
