"""What is computed of a number of 8 bits, computed once for all of them.

A quantised network's activation is a chain of operations on single numbers of 8 bits, which makes
such numbers again: there are 256 results. A kernel of them makes a table first, by the same
operations, and then looks every element up. With AVX-512 VBMI sixty-four are looked up at a time,
in a table that is in registers; other processors read it from memory, element by element.

TensorIR knows no such instruction: a loop over elements that lie together is annotated, in the
trace as well, and `looking_up` puts a function in LLVM's own language in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.ir.expr import StringImm, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer, iter_map_simplify
from tvm.target.codegen import target_has_features
from tvm_ffi import structural_map, structural_walk

from tunefarm.devices.target import Target
from tunefarm.search.kernels.halo import has_room
from tunefarm.search.kernels.splice import is_true, renamed
from tunefarm.search.spaces.elementwise import Chain, chain_of
from tunefarm.search.spaces.expressions import loads_of, place_of, uses

KEY = "tunefarm.look_up"
"""Of an annotated loop."""
TABLE, LOOK_UP = "table", "look_up"
"""Names of the stages that `tabled` makes."""
ENTRIES = 256
BYTES = ("uint8", "int8")
AT_ONCE = 64
_FUNCTION = "tunefarm_look_up"

_ONE_BY_ONE = """
one:
  %at = phi i64 [ {first}, %{before} ], [ %next, %one.body ]
  %left = icmp ult i64 %at, %count
  br i1 %left, label %one.body, label %done
one.body:
  %source = getelementptr i8, ptr %from, i64 %at
  %number = load i8, ptr %source, align 1
  %index = zext i8 %number to i64
  %place = getelementptr i8, ptr %table, i64 %index
  %found = load i8, ptr %place, align 1
  %target = getelementptr i8, ptr %to, i64 %at
  store i8 %found, ptr %target, align 1
  %next = add i64 %at, 1
  br label %one
done:
  ret void
}}
"""
_HEAD = f"""
define linkonce_odr void @{_FUNCTION}(ptr %to, ptr %from, ptr %table, i64 %count) alwaysinline {{
entry:
"""
_IN_MEMORY = _HEAD + "  br label %one\n" + _ONE_BY_ONE.format(first="0", before="entry")
_LOOK = "call <64 x i8> @llvm.x86.avx512.vpermi2var.qi.512"
_IN_REGISTERS = (
    f"declare {_LOOK[5:]}(<64 x i8>, <64 x i8>, <64 x i8>)\n"
    + _HEAD
    + "".join(
        f"  %table.{part} = getelementptr i8, ptr %table, i64 {64 * part}\n"
        f"  %t{part} = load <64 x i8>, ptr %table.{part}, align 1\n"
        for part in range(4)
    )
    + f"""  %whole = and i64 %count, -64
  br label %many
many:
  %i = phi i64 [ 0, %entry ], [ %i.next, %many.body ]
  %more = icmp ult i64 %i, %whole
  br i1 %more, label %many.body, label %one
many.body:
  %sources = getelementptr i8, ptr %from, i64 %i
  %numbers = load <64 x i8>, ptr %sources, align 1
  %low = {_LOOK}(<64 x i8> %t0, <64 x i8> %numbers, <64 x i8> %t1)
  %high = {_LOOK}(<64 x i8> %t2, <64 x i8> %numbers, <64 x i8> %t3)
  %is.high = icmp slt <64 x i8> %numbers, zeroinitializer
  %all = select <64 x i1> %is.high, <64 x i8> %high, <64 x i8> %low
  %targets = getelementptr i8, ptr %to, i64 %i
  store <64 x i8> %all, ptr %targets, align 1
  %i.next = add i64 %i, 64
  br label %many
"""
    + _ONE_BY_ONE.format(first="%whole", before="many")
)


@dataclass(frozen=True)
class Lookup:
    """A kernel that a table computes.

    Attributes:
        chain: it as one stage, which stores element by element, all of them in their order.
        load: where that reads the numbers.
    """

    chain: Chain
    load: Any

    def of(self, number: Any) -> Any:
        """What the chain makes of a number of the type that it reads; axes of one element are at
        their only place."""
        node, axes = self.chain.last.node, self.chain.last.axes

        def read(load: Any) -> Any:
            return number if load.source.same_as(self.load.source) else load

        value = structural_map(node.body.value, (TensorLoad, read))
        zero = tirx.const(0, "int64")
        single = zip(node.iter_vars, axes, strict=True)
        return renamed(value, {one.var: zero for one, axis in single if axis.extent == 1})


def lookup_of(workload: Any) -> Lookup | None:
    """The kernel as a chain of operations on single numbers of 8 bits that makes such numbers, and
    leaves them where they were; None where it is something else."""
    chain = chain_of(workload)
    if chain is None or has_room(workload):
        return None
    store, variables = chain.last.node.body, chain.last.node.iter_vars
    loads = [one for one in loads_of(store.value) if _elements(one.source) > 1]
    if not loads or not _is_of_bytes(store.buffer) or not _is_of_bytes(loads[0].source):
        return None
    known = Analyzer()
    for one in variables:
        known.bind(one.var, Range.from_min_extent(one.dom.min, one.dom.extent))
    here = place_of(store.indices, store.buffer)
    alike = all(
        one.source.same_as(loads[0].source)
        and _elements(one.source) == chain.points
        and _whole(known.simplify(place_of(one.indices, one.source) - here)) == 0
        for one in loads
    )
    found = Lookup(chain, loads[0])
    places = [variable.var for variable in variables]
    number = tirx.Var("number", loads[0].source.dtype)
    value = found.of(number)
    if not alike or value.same_as(number):  # (a copy)
        return None
    return None if any(uses(value, place) for place in places) else found


def _whole(value: Any) -> int | None:
    return int(value.value) if isinstance(value, tirx.IntImm) else None


def _is_of_bytes(buffer: Any) -> bool:
    return str(buffer.dtype) in BYTES


def _elements(buffer: Any) -> int:
    return prod(map(int, buffer.shape))


def tabled(workload: Any, entries: int) -> Any:
    """`workload` rewritten with a table of so many results; its arguments, the result among them,
    stay as they are.

    Raises:
        ValueError: it is nothing that a table of so many computes.
    """
    found = lookup_of(workload)
    if found is None or entries != ENTRIES:
        raise ValueError(f"no kernel that a table of {entries} computes")
    store = found.chain.last.node.body
    table = tirx.decl_buffer((ENTRIES,), store.buffer.dtype, "table")
    text = tirx.SeqStmt([_filled(found, table), _looked_up(found, table)])
    root = SBlock([], [], [], "root", text, alloc_buffers=[table])
    body = SBlockRealize([], tirx.const(True, "bool"), root)
    return tvm.IRModule({"main": workload["main"].with_body(body)})


def _filled(found: Lookup, table: Any) -> Any:
    """The table: of each number, in the order of its bits without a sign, what is made of it."""
    entry = tirx.Var("entry", "int64")
    number = entry
    if str(found.load.source.dtype) == "int8":  # of which all bits of an entry would be too large
        number = tirx.floormod(entry + 128, ENTRIES) - 128
    value = found.of(tirx.Cast(found.load.source.dtype, number))
    others = {load.source: load for load in loads_of(value)}
    reads = [_region(load.source, load.indices) for load in others.values()]
    made = tirx.BufferStore(table, value, [entry])
    return _nest(TABLE, [entry], [ENTRIES], reads, made)


def _looked_up(found: Lookup, table: Any) -> Any:
    node = found.chain.last.node
    axes = [one.var for one in node.iter_vars]
    entry = tirx.Cast("int64", tirx.Cast("uint8", found.load))
    stored = tirx.BufferStore(
        node.body.buffer, tirx.BufferLoad(table, [entry]), list(node.body.indices)
    )
    whole = tirx.BufferRegion(table, [Range(0, ENTRIES)])
    reads = [_region(found.load.source, found.load.indices), whole]
    extents = [axis.extent for axis in found.chain.last.axes]
    return _nest(LOOK_UP, axes, extents, reads, stored)


def _region(buffer: Any, indices: Any) -> Any:
    one = tirx.const(1, "int64")
    return tirx.BufferRegion(buffer, [Range.from_min_extent(index, one) for index in indices])


def _nest(name: str, axes: list[Any], extents: list[int], reads: list[Any], store: Any) -> Any:
    """Loops around a block with these axes that stores so."""
    loops = [tirx.Var(f"i{place}", "int64") for place in range(len(axes))]
    sizes = [tirx.const(extent, "int64") for extent in extents]
    zero = tirx.const(0, "int64")
    variables = [
        tirx.IterVar(Range.from_min_extent(zero, size), axis, tirx.IterVar.DataPar)
        for size, axis in zip(sizes, axes, strict=True)
    ]
    block = SBlock(variables, reads, [_region(store.buffer, store.indices)], name, store)
    text: Any = SBlockRealize(loops, tirx.const(True, "bool"), block)
    for loop, size in zip(reversed(loops), reversed(sizes), strict=True):
        text = tirx.For(loop, zero, size, tirx.ForKind.SERIAL, text)
    return text


def look_up(schedule: Any, loop: Any) -> None:
    """Let `loop`, whose elements lie together, look them up at once."""
    schedule.annotate(loop, KEY, True)


def looking_up(function: Any, target: Target) -> Any:
    """A scheduled kernel with the function that its loops are annotated with.

    Raises:
        ValueError: such a loop looks up nothing, or elements that do not lie together.
    """
    vbmi = target_has_features("avx512vbmi", tvm.target.Target(target.tvm))
    text = _IN_REGISTERS if vbmi else _IN_MEMORY
    loops: list[Any] = []
    structural_walk(function.body, (tirx.For, loops.append))
    spans = {one.loop_var: Range.from_min_extent(one.min, one.extent) for one in loops}

    def looked_up(loop: Any) -> Any:
        return _called(loop, spans, text) if KEY in loop.annotations else loop

    return function.with_body(structural_map(function.body, (tirx.For, looked_up)))


def _called(loop: Any, spans: Mapping[Any, Any], text: str) -> Any:
    realize = loop.body
    found = _looks_up(realize)
    if found is None or not _lies_together(loop, spans, realize, found[0]):
        raise ValueError("no loop over elements that lie together, to be looked up")
    number, table = found
    store = realize.block.body
    axes = [one.var for one in realize.block.iter_vars]
    values = dict(zip(axes, realize.iter_values, strict=True))
    first = {loop.loop_var: loop.min}

    def address(buffer: Any, indices: Any) -> Any:
        there = [renamed(renamed(index, values), first) for index in indices]
        return tirx.address_of(tirx.BufferLoad(buffer, there))

    call = tirx.call_extern(
        "void",
        _FUNCTION,
        address(store.buffer, store.indices),
        address(number.source, number.indices),
        address(table, [tirx.const(0, "int64")]),
        tirx.Cast("int64", loop.extent),
    )
    inside = tirx.AttrStmt(
        tirx.const(0, "int32"), "pragma_import_llvm", StringImm(text), tirx.Evaluate(call)
    )
    return SBlockRealize([], tirx.const(True, "bool"), SBlock([], [], [], LOOK_UP, inside))


def _looks_up(realize: Any) -> tuple[Any, Any] | None:
    """Where a block reads the number that it looks up, and the table; None where it does not, or
    not in any case."""
    if not isinstance(realize, SBlockRealize) or not is_true(realize.predicate):
        return None
    entry = getattr(realize.block.body, "value", None)
    if not isinstance(entry, TensorLoad) or list(map(int, entry.source.shape)) != [ENTRIES]:
        return None
    try:
        number = entry.indices[0].value.value
        found = isinstance(number, TensorLoad) and _is_of_bytes(number.source)
    except AttributeError:
        return None
    return (number, entry.source) if found and _is_of_bytes(entry.source) else None


def _lies_together(loop: Any, spans: Mapping[Any, Any], realize: Any, number: Any) -> bool:
    """Whether both tensors' elements do, from one iteration to the next, in the whole of them.
    `spans` are those of the loops' variables."""
    axes = realize.block.iter_vars
    values = dict(zip([one.var for one in axes], realize.iter_values, strict=True))
    store, extent = realize.block.body, int(loop.extent)
    within, known = Analyzer(), Analyzer()
    for one in axes:
        within.bind(one.var, Range.from_min_extent(one.dom.min, one.dom.extent))
    known.bind(loop.loop_var, spans[loop.loop_var])
    for buffer, indices in ((store.buffer, store.indices), (number.source, number.indices)):
        # In the axes first, which a reshape divides, and then in the loops, which divide those.
        place = renamed(within.simplify(place_of(indices, buffer)), values)
        (place,) = iter_map_simplify([place], spans)
        begin = renamed(place, {loop.loop_var: loop.min})
        step = known.simplify(place - begin - (loop.loop_var - loop.min))
        if _whole(step) != 0 or _elements(buffer) % extent:
            return False
    return True
