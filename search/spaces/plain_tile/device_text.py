"""CUDA C++ of a thread's part of a product: what it reads from shared memory, and where its sums
go. Functions of their own for each shape, as those of `tensor_tile.device_text`.

Where an operand is deep, a thread's lines are as far from each other as a warp has threads along
them, and it reads four terms of each at once; else it has four lines side by side, and reads these
at once, term by term. Either way neighbouring threads read what lies in other banks.
"""

from __future__ import annotations

from tunefarm.search.spaces.plain_tile.tile import TOGETHER, Lanes, PlainLayout, vector_of
from tunefarm.search.spaces.written import Function, device_function

_WRITTEN = 1024
"""Multiply-adds of a loop's body at most: some 16 KiB of instructions. With twice as many an H200
takes 1.3 times as long where a scheduler has one warp, and 0.94 to 1.04 times where it has two."""


def multiply(of: Lanes) -> Function:
    """A step's products added to a thread's sums."""
    body = f"""\
{_place(of)}
  const unsigned a_at = left + row * {_apart(of.left)}, b_at = right + column * {_apart(of.right)};
  #pragma unroll {_unrolled(of)}
  for (int k = 0; k < {of.left.depth}; k += {TOGETHER}) {{
    float a[{of.own_rows}][{TOGETHER}], b[{of.own_columns}][{TOGETHER}];
{_read("a", of.left, of.own_rows, of.down)}
{_read("b", of.right, of.own_columns, of.across)}
    #pragma unroll
    for (int t = 0; t < {TOGETHER}; ++t) {{
      #pragma unroll
      for (int i = 0; i < {of.own_rows}; ++i) {{
        #pragma unroll
        for (int j = 0; j < {of.own_columns}; ++j) {{
          float* c = sums + i * {of.own_columns} + j;
          *c = fmaf(a[i][t], b[j][t], *c);
        }}
      }}
    }}
  }}"""
    arguments = "float* sums, unsigned left, unsigned right"
    return device_function(f"tunefarm_plain_multiply_{_words(of)}", "void", arguments, body)


def _unrolled(of: Lanes) -> int:
    """Turns of four terms that are written out: as many as divide all, and as instructions near a
    multiprocessor have room for."""
    turns = of.left.depth // TOGETHER
    each = of.own_rows * of.own_columns * TOGETHER
    return max(n for n in range(1, turns + 1) if turns % n == 0 and n * each <= max(each, _WRITTEN))


def lay_down(of: Lanes, row_bytes: int) -> Function:
    """A thread's sums into shared memory, row by row, `row_bytes` apart."""
    side = 1 if of.right.deep else vector_of(of.own_columns)
    vector, places = (f".v{side}", "{%1}") if side > 1 else ("", "%1")
    names = ", ".join(f"%{n + 1}" for n in range(side))
    values = ", ".join(f'"f"(sums[i * {of.own_columns} + j * {side} + {n}])' for n in range(side))
    body = f"""\
{_place(of)}
  to += row * {row_bytes} + column * 4;
  #pragma unroll
  for (int i = 0; i < {of.own_rows}; ++i) {{
    #pragma unroll
    for (int j = 0; j < {of.own_columns // side}; ++j) {{
      asm volatile("st.shared{vector}.f32 [%0], {places.replace("%1", names)};"
        :: "r"(to + {_line("i", of.left, of.own_rows, of.down)} * {row_bytes}
               + j * {of.across * side * 4}), {values} : "memory");
    }}
  }}"""
    name = f"tunefarm_plain_lay_down_{_words(of)}_{row_bytes}"
    return device_function(name, "void", "float* sums, unsigned to", body)


def _words(of: Lanes) -> str:
    sides = "".join("k" if one.deep else "n" for one in (of.left, of.right))
    return (
        f"{of.left.lines}x{of.right.lines}x{of.left.depth}_{of.own_rows}x{of.own_columns}_"
        f"{of.down}x{of.across}_{sides}"
    )


def _place(of: Lanes) -> str:
    """A thread's first row and column."""
    row_step = 1 if of.left.deep else vector_of(of.own_rows)
    column_step = 1 if of.right.deep else vector_of(of.own_columns)
    return f"""\
  const unsigned lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;
  const unsigned row = warp % {of.warps_down} * {of.down * of.own_rows}
    + lane / {of.across} * {row_step};
  const unsigned column = warp / {of.warps_down} * {of.across * of.own_columns}
    + lane % {of.across} * {column_step};"""


def _apart(side: PlainLayout) -> int:
    """Bytes from a line to the next."""
    return side.row_bytes if side.deep else 4


def _line(which: str, side: PlainLayout, own: int, threads: int) -> str:
    """From a thread's first line to another of its own."""
    if side.deep:
        return f"{which} * {threads}"
    vector = vector_of(own)
    return f"({which} / {vector} * {threads * vector} + {which} % {vector})"


def _read(into: str, side: PlainLayout, own: int, threads: int) -> str:
    """Four terms of all of a thread's lines."""
    if side.deep:
        outputs = ", ".join(f'"=f"({into}[i][{n}])' for n in range(TOGETHER))
        return f"""\
    #pragma unroll
    for (int i = 0; i < {own}; ++i)
      asm volatile("ld.shared.v4.f32 {{%0, %1, %2, %3}}, [%4];" : {outputs}
        : "r"({into}_at + i * {threads * side.row_bytes} + k * 4));"""
    vector = vector_of(own)
    outputs = ", ".join(f'"=f"({into}[i * {vector} + {n}][t])' for n in range(vector))
    names = ", ".join(f"%{n}" for n in range(vector))
    kind, target = (f".v{vector}", f"{{{names}}}") if vector > 1 else ("", names)
    return f"""\
    #pragma unroll
    for (int t = 0; t < {TOGETHER}; ++t)
      #pragma unroll
      for (int i = 0; i < {own // vector}; ++i)
        asm volatile("ld.shared{kind}.f32 {target}, [%{vector}];" : {outputs}
          : "r"({into}_at + (k + t) * {side.row_bytes} + i * {threads * vector * 4}));"""
