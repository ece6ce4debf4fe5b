"""Other text in a kernel: other statements for some of its stages, other names; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm_ffi import structural_map, structural_walk


def spliced(
    function: Any, instead: Mapping[str, Sequence[Any]], buffers: Sequence[Any], unused: str = ""
) -> Any:
    """The module of `function` with other statements instead of the named stages'.

    Args:
        instead: by the name of a stage, the statements that take its place; none remove it.
        buffers: that those allocate.
        unused: name of a buffer that is needed no longer.
    """
    root = function.body.block
    text: list[Any] = []
    for statement in root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]:
        replaced = [new for name, new in instead.items() if _holds(statement, name)]
        text += replaced[0] if replaced else [statement]
    rewritten = SBlock(
        [],
        [],
        [],
        "root",
        tirx.SeqStmt(text) if len(text) > 1 else text[0],
        alloc_buffers=[
            *(buffer for buffer in root.alloc_buffers if buffer.name != unused),
            *buffers,
        ],
    )
    body = SBlockRealize([], tirx.const(True, "bool"), rewritten)
    return tvm.IRModule({"main": function.with_body(body)})


def _holds(statement: Any, block: str) -> bool:
    names: list[str] = []
    structural_walk(statement, (SBlock, lambda node: names.append(node.name_hint)))
    return block in names


def once(body: Any, name: str, buffers: Sequence[Any] = ()) -> Any:
    """`body` as a block of its own, which TVM's schedules ask for, with buffers of its own."""
    block = SBlock([], [], [], name, body, alloc_buffers=list(buffers))
    return SBlockRealize([], tirx.const(True, "bool"), block)


def is_true(predicate: Any) -> bool:
    """Whether a block is run in any case."""
    return bool(getattr(predicate, "value", False))


def without_note(loop: Any, key: str, body: Any) -> Any:
    """`loop` around `body`, without the annotation `key`."""
    notes = {name: value for name, value in loop.annotations.items() if name != key}
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=notes)


def with_note(loop: Any, key: str, note: Any) -> Any:
    """`loop` with an annotation more."""
    notes = {**loop.annotations, key: note}
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, annotations=notes)


def renamed(node: Any, names: Mapping[Any, Any]) -> Any:
    """`node` with what `names` has for some of its variables, buffers among them; indices are cast
    to what the variable is of, for imported networks have them of 64 bits."""

    def instead(variable: Any) -> Any:
        found = [new for old, new in names.items() if variable.same_as(old)]
        return _cast(found[0], variable) if found else variable

    return structural_map(node, (Var, instead))


def _cast(value: Any, variable: Any) -> Any:
    wanted = str(getattr(variable.ty, "dtype", ""))
    if not wanted.startswith("int") or str(value.ty.dtype) == wanted:
        return value
    return tirx.Cast(wanted, value)
