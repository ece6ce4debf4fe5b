"""CUDA C++ of what no compiler writes by itself: products of what is in registers, and the softmax
of scores that come step by step.

Scores are not seen together: each step's are brought to the largest so far, and what was summed up
before is scaled when a larger one comes (Milakov and Gimelshein 2018; Dao et al. 2022). A thread
has its sums of a product where the next one wants its rows (NVIDIA, Parallel Thread Execution ISA,
"Matrix Fragments for mma.m16n8k16"), so that weights go from one to the other without leaving it.
"""

from __future__ import annotations

from math import e, log2

from tunefarm.search.spaces.tensor_tile.device_text import (
    TYPES,
    Shape,
    group_products,
    matrices_of_left,
    matrices_of_right,
    place_of_warp,
)
from tunefarm.search.spaces.written import Function, device_function

_EARLY = 2
"""Pairs of columns that are read before they are multiplied."""
_LOG2_E = f"{log2(e):.9g}f"


def hold(shape: Shape) -> Function:
    """A warp's rows of the left operand, in registers from now on: of a step of sixteen terms and
    sixteen rows four, steps outermost."""
    down, _ = shape.fragments
    into = ", ".join(f"held[(k * {down} + i) * 4 + {n}]" for n in range(4))
    body = f"""\
{place_of_warp(shape)}
  (void)column;
  #pragma unroll
  for (int k = 0; k < {shape.steps}; ++k) {{
    #pragma unroll
    for (int i = 0; i < {down}; ++i) {{
      {matrices_of_left(shape, into)}
    }}
  }}"""
    name = f"tunefarm_hold_{shape.words}"
    return device_function(name, "void", "unsigned* held, unsigned left", body)


def multiply_held(shape: Shape) -> Function:
    """Products of held rows with the right operand's columns, added to a thread's sums; with groups
    it goes on beside."""
    body = _by_groups(shape) if shape.grouped else _by_warps(shape)
    arguments = "float* sums, unsigned* held, unsigned right"
    return device_function(f"tunefarm_multiply_held_{shape.words}", "void", arguments, body)


def _by_groups(shape: Shape) -> str:
    held = [[f"held[{k * 4 + n}]" for n in range(4)] for k in range(shape.steps)]
    keeping = "".join(f', "+r"({one})' for step in held for one in step)
    return group_products(shape, [[f'"r"({one})' for one in step] for step in held], keeping)


def _by_warps(shape: Shape) -> str:
    down, across = shape.fragments
    of, slots, pairs = TYPES[shape.dtype], _EARLY + 1, across // 2
    into = "b[at][0], b[at][1], b[at][2], b[at][3]"
    return f"""\
{place_of_warp(shape)}
  (void)row;
  unsigned b[{slots}][4];
  #pragma unroll
  for (int turn = 0; turn < {shape.steps * pairs + _EARLY}; ++turn) {{
    if (turn < {shape.steps * pairs}) {{
      const int k = turn / {pairs}, j = turn % {pairs} * 2, at = turn % {slots};
      {matrices_of_right(shape, into)}
    }}
    if (turn >= {_EARLY}) {{
      const int which = turn - {_EARLY}, at = which % {slots};
      const int k = which / {pairs}, j = which % {pairs} * 2;
      #pragma unroll
      for (int i = 0; i < {down}; ++i) {{
        const unsigned* a = held + (k * {down} + i) * 4;
        #pragma unroll
        for (int n = 0; n < 2; ++n) {{
          float* c = sums + (i * {across} + j + n) * 4;
          asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{of}.{of}.f32 "
            "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
              "r"(b[at][n * 2]), "r"(b[at][n * 2 + 1]));
        }}
      }}
    }}
  }}"""


def soften(first: Shape, second: Shape, alone: bool) -> Function:
    """A step's scores, which are `factor` times what is in `scores`, to weights, which are held for
    the second product; its sums so far, and the weights' in `total`, of a thread's own columns, to
    the largest score that there is.

    Where scores are products `alone`, the largest is taken off as they are scaled, in one
    instruction; what has been added to them may be as large as numbers are, and is scaled when it
    has been taken off.
    """
    down, across = first.fragments
    _, mixed = second.fragments
    of = TYPES[first.dtype]
    less = "(mine[j * 4 + c] - base) * to_twos"
    if alone:
        less = "fmaf(mine[j * 4 + c], to_twos, -base * to_twos)"
    body = f"""\
  const float to_twos = factor * {_LOG2_E};
  #pragma unroll
  for (int i = 0; i < {down}; ++i) {{
    #pragma unroll
    for (int h = 0; h < 2; ++h) {{
      float* mine = scores + i * {across * 4} + h * 2;
      float top = most[i * 2 + h];
      #pragma unroll
      for (int j = 0; j < {across}; ++j)
        top = fmaxf(top, fmaxf(mine[j * 4], mine[j * 4 + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      // Where no key counts yet, nothing is taken from minus infinity.
      const float base = top < -3.402823466e38f ? 0.0f : top;
      float before;  // one where the largest stays
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(before)
        : "f"((most[i * 2 + h] - base) * to_twos));
      most[i * 2 + h] = top;
      float sum = 0.0f;
      #pragma unroll
      for (int j = 0; j < {across}; ++j) {{
        #pragma unroll
        for (int c = 0; c < 2; ++c) {{
          asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(mine[j * 4 + c])
            : "f"({less}));
          sum += mine[j * 4 + c];
        }}
      }}
      total[i * 2 + h] = total[i * 2 + h] * before + sum;
      #pragma unroll
      for (int j = 0; j < {mixed}; ++j) {{
        sums[(i * {mixed} + j) * 4 + h * 2] *= before;
        sums[(i * {mixed} + j) * 4 + h * 2 + 1] *= before;
      }}
    }}
    #pragma unroll
    for (int j = 0; j < {across}; ++j) {{
      #pragma unroll
      for (int h = 0; h < 2; ++h) {{
        const float* pair = scores + (i * {across} + j) * 4 + h * 2;
        asm("cvt.rn.{of}x2.f32 %0, %1, %2;"
          : "=r"(weights[(j / 2 * {down} + i) * 4 + j % 2 * 2 + h])
          : "f"(pair[1]), "f"(pair[0]));
      }}
    }}
  }}"""
    arguments = (
        "float* scores, float* most, float* total, float* sums, unsigned* weights, float factor"
    )
    name = f"tunefarm_soften_{'alone_' if alone else ''}{first.words}_by_{second.words}"
    return device_function(name, "void", arguments, body)


def divided(shape: Shape, guarded: bool = False) -> Function:
    """Sums by the sum of all weights, which a row's four threads have in parts; `guarded`: nought
    where that sum is, or is no number."""
    down, across = shape.fragments
    sums = [f"sums[(r / 2 * {across} + j) * 4 + r % 2 * 2{' + 1' * c}]" for c in range(2)]
    share, finished = "1.0f / all", [f"{one} *= all" for one in sums]
    if guarded:
        share = "all > 0.0f ? 1.0f / all : 0.0f"
        finished = [f"{one} = all > 0.0f ? {one} * all : 0.0f" for one in sums]
    body = f"""\
  #pragma unroll
  for (int r = 0; r < {down * 2}; ++r) {{
    float all = total[r];
    all += __shfl_xor_sync(0xffffffffu, all, 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    all = {share};
    #pragma unroll
    for (int j = 0; j < {across}; ++j) {{
      {finished[0]};
      {finished[1]};
    }}
  }}"""
    name = f"tunefarm_divided_{'guarded_' if guarded else ''}{shape.words}"
    return device_function(name, "void", "float* sums, const float* total", body)
