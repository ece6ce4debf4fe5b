"""CUDA C++ of what no compiler writes by itself: copies, matrices, tensor cores.

Functions of their own for each shape, with the shape in their names, so that a program may have
many. Which thread holds which element of a matrix: NVIDIA, Parallel Thread Execution ISA, "Matrix
Fragments for mma.m16n8k.." and "Register Fragments for wgmma.mma_async.m64nNk..".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.search.spaces.tensor_tile.layout import ALIGNED, CHUNK, TileLayout
from tunefarm.search.spaces.written import Function, device_function

STEP_BYTES = 32
"""Of an operand's line, that one instruction multiplies, whatever the type."""
MMA_ROWS, MMA_COLUMNS = 16, 8
GROUP_ROWS = 64
"""Rows that the four warps of a group multiply together on Hopper."""
GROUP = 128
"""Threads of such a group."""
TF32 = "tf32"
TYPES = {"float16": "f16", "bfloat16": "bf16", "int8": "s8", "float32": TF32}
_SUMS = {"float32": ("float", "f", "f32"), "int32": ("int", "r", "s32")}


def shared_address() -> Function:
    """Of a block's memory, from where on a tile may begin."""
    return device_function(
        "tunefarm_shared",
        "unsigned",
        "void* memory",
        f"  return ((unsigned)__cvta_generic_to_shared(memory) + {ALIGNED - 1}u)"
        f" & ~{ALIGNED - 1}u;",
    )


def copy_piece(size: int) -> Function:
    """`size` bytes from global to shared memory beside the threads; zeros where nothing is."""
    how = "cg" if size == CHUNK else "ca"
    return device_function(
        f"tunefarm_copy_{size}",
        "void",
        "unsigned to, const void* from, int there",
        f'  asm volatile("cp.async.{how}.shared.global [%0], [%1], {size}, %2;"\n'
        f'    :: "r"(to), "l"(from), "r"(there ? {size} : 0) : "memory");',
    )


def copy_single() -> Function:
    """Of two bytes, which no asynchronous copy is for; what is read waits for nothing but its own
    store, so that many are under way at a time."""
    body = """\
  unsigned short read;
  asm("{\\n.reg .pred p;\\nsetp.ne.b32 p, %2, 0;\\nmov.b16 %0, 0;\\n"
    "@p ld.global.nc.b16 %0, [%1];\\n}" : "=h"(read) : "l"(from), "r"(there));
  asm volatile("st.shared.b16 [%0], %1;" :: "r"(to), "h"(read) : "memory");"""
    arguments = "unsigned to, const void* from, int there"
    return device_function("tunefarm_copy_single", "void", arguments, body)


def copies_begun() -> Function:
    """The end of a step's copies."""
    return device_function("tunefarm_copies_begun", "void", "", _asm("cp.async.commit_group;"))


def copies_met(but: int, for_groups: bool) -> Function:
    """Until all threads have all but the last `but` steps' copies, for each other to read;
    `for_groups`: tensor cores read them without the threads."""
    text = [_asm(f"cp.async.wait_group {but};")]
    if for_groups:
        text.append(_asm("fence.proxy.async.shared::cta;"))
    text.append("  __syncthreads();")
    name = f"tunefarm_copies_met_{but}{'_groups' if for_groups else ''}"
    return device_function(name, "void", "", "\n".join(text))


def _asm(instruction: str) -> str:
    return f'  asm volatile("{instruction}" ::: "memory");'


@dataclass(frozen=True)
class Shape:
    """What the warps of a block multiply in one step.

    Attributes:
        left, right: tiles in shared memory.
        warps_down, warps_across: of the block; each has as many rows, and columns.
        grouped: by Hopper's instructions for groups of four warps.
        turned: the operands have changed places, so that groups sum rows of the result's columns:
            the one on the left is read by threads, the one on the right by tensor cores.
    """

    left: TileLayout
    right: TileLayout
    warps_down: int
    warps_across: int
    dtype: str
    sums: str
    grouped: bool
    turned: bool = False

    @property
    def fragments(self) -> tuple[int, int]:
        """Of sixteen rows and of eight columns, that a warp has."""
        down = self.left.lines // self.warps_down // MMA_ROWS
        return down, self.right.lines // self.warps_across // MMA_COLUMNS

    @property
    def groups(self) -> int:
        """Of four warps."""
        return self.warps_down * self.warps_across * 32 // GROUP

    @property
    def held(self) -> int:
        """Sums of a thread."""
        down, across = self.fragments
        return down * across * 4

    @property
    def steps(self) -> int:
        return self.left.depth * self.left.element_bytes // STEP_BYTES

    @property
    def words(self) -> str:
        left, right = self.left, self.right
        sides = "".join("k" if one.deep else "n" for one in (left, right))
        return (
            f"{'groups' if self.grouped else 'warps'}{'_turned' if self.turned else ''}"
            f"_{TYPES[self.dtype]}_{left.lines}x"
            f"{right.lines}x{left.depth}_{self.warps_down}x{self.warps_across}_{sides}"
        )


def multiply(shape: Shape, anew: bool = False) -> Function:
    """A step's products added to a thread's sums; with groups it goes on beside, and they may be
    summed `anew`."""
    kind, _, _ = _SUMS[shape.sums]
    by_groups = _by_groups_turned if shape.turned else _by_groups
    body = by_groups(shape, anew) if shape.grouped else _by_warps(shape)
    arguments = f"{kind}* sums, unsigned left, unsigned right"
    name = f"tunefarm_multiply_{'anew_' if anew else ''}{shape.words}"
    return device_function(name, "void", arguments, body)


def multiplied(shape: Shape, but: int) -> Function:
    """Until a group's tensor cores have done all but the last `but` steps; after the last of all
    its sums may be read."""
    kind, letter, _ = _SUMS[shape.sums]
    operands = ""
    if not but:
        operands = ", ".join(f'"+{letter}"(sums[{n}])' for n in range(shape.held))
    body = f'  asm volatile("wgmma.wait_group.sync.aligned {but};" : {operands} :: "memory");'
    name = f"tunefarm_multiplied_{shape.words}_{but}"
    return device_function(name, "void", f"{kind}* sums", body)


def lay_down(shape: Shape, row_bytes: int) -> Function:
    """A thread's sums into shared memory, row by row, `row_bytes` apart."""
    kind, _, _ = _SUMS[shape.sums]
    body = _laid_turned(shape, row_bytes) if shape.turned else _laid(shape, row_bytes)
    name = f"tunefarm_lay_down_{shape.words}_{row_bytes}"
    return device_function(name, "void", f"{kind}* sums, unsigned to", body)


def _laid(shape: Shape, row_bytes: int) -> str:
    _, letter, _ = _SUMS[shape.sums]
    down, across = shape.fragments
    return f"""\
{place_of_warp(shape)}
  to += (row + lane / 4) * {row_bytes} + (column + lane % 4 * 2) * 4;
  #pragma unroll
  for (int i = 0; i < {down}; ++i) {{
    #pragma unroll
    for (int j = 0; j < {across}; ++j) {{
      #pragma unroll
      for (int h = 0; h < 2; ++h) {{
        asm volatile("st.shared.v2.b32 [%0], {{%1, %2}};"
          :: "r"(to + (i * {MMA_ROWS} + h * 8) * {row_bytes} + j * {MMA_COLUMNS * 4}),
             "{letter}"(sums[(i * {across} + j) * 4 + h * 2]),
             "{letter}"(sums[(i * {across} + j) * 4 + h * 2 + 1]) : "memory");
      }}
    }}
  }}"""


def pick_up(sums: str, count: int) -> Function:
    """`count` neighbours of what was laid down, for one thread."""
    kind, letter, _ = _SUMS[sums]
    vector = f".v{count}" if count > 1 else ""
    names = ", ".join(f"%{n}" for n in range(count))
    operands = ", ".join(f'"={letter}"(own[{n}])' for n in range(count))
    target = f"{{{{{names}}}}}" if count > 1 else names
    body = (
        (
            f'  asm volatile("ld.shared{vector}.b32 {target}, [%{count}];"\n'
            f'    : {operands} : "r"(from) : "memory");'
        )
        .replace("{{", "{")
        .replace("}}", "}")
    )
    return device_function(
        f"tunefarm_pick_up_{sums}_{count}", "void", f"{kind}* own, unsigned from", body
    )


# --------------------------------------------------------------------------- warp by warp


def place_of_warp(shape: Shape) -> str:
    down, across = shape.fragments
    return (
        "  const unsigned lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;\n"
        f"  const unsigned row = warp % {shape.warps_down} * {down * MMA_ROWS};\n"
        f"  const unsigned column = warp / {shape.warps_down} * {across * MMA_COLUMNS};"
    )


def _at(layout: TileLayout, across: str, chunk: str) -> str:
    """`TileLayout.offset` of a piece of sixteen bytes, as C++."""
    chunks, rows = layout.width // CHUNK, 128 // layout.width
    return (
        f"({chunk}) / {chunks} * {layout.panel_bytes} + ({across}) * {layout.width}"
        f" + ((({chunk}) % {chunks} ^ ({across}) / {rows} % {chunks}) * {CHUNK})"
    )


def _by_warps(shape: Shape) -> str:
    down, across = shape.fragments
    kind, letter, sums = _SUMS[shape.sums]
    of, each = TYPES[shape.dtype], shape.left.element_bytes
    depth = STEP_BYTES // each
    right = matrices_of_right(shape, "b[at][j][0], b[at][j][1], b[at][j + 1][0], b[at][j + 1][1]")
    if of == TF32 and not shape.right.deep:
        right = _words_of_right(shape)
    rounded = _rounded(shape) if of == TF32 else ""
    return f"""\
{place_of_warp(shape)}
  unsigned a[2][{down}][4], b[2][{across}][2];
  #pragma unroll
  for (int turn = 0; turn <= {shape.steps}; ++turn) {{
    if (turn < {shape.steps}) {{
      const int k = turn, at = turn & 1;
      #pragma unroll
      for (int i = 0; i < {down}; ++i) {{
        {matrices_of_left(shape, "a[at][i][0], a[at][i][1], a[at][i][2], a[at][i][3]")}
      }}
      #pragma unroll
      for (int j = 0; j < {across}; j += 2) {{
        {right}
      }}{rounded}
    }}
    if (turn > 0) {{
      const int at = (turn - 1) & 1;
      #pragma unroll
      for (int i = 0; i < {down}; ++i) {{
        #pragma unroll
        for (int j = 0; j < {across}; ++j) {{
          {kind}* c = sums + (i * {across} + j) * 4;
          asm volatile("mma.sync.aligned.m16n8k{depth}.row.col.{sums}.{of}.{of}.{sums} "
            "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
            : "+{letter}"(c[0]), "+{letter}"(c[1]), "+{letter}"(c[2]), "+{letter}"(c[3])
            : "r"(a[at][i][0]), "r"(a[at][i][1]), "r"(a[at][i][2]), "r"(a[at][i][3]),
              "r"(b[at][j][0]), "r"(b[at][j][1]));
        }}
      }}
    }}
  }}"""


def matrices_of_left(shape: Shape, into: str) -> str:
    """Sixteen rows `i` of a warp's and a step `k`, into four registers of a thread."""
    if shape.left.deep:
        place = _at(shape.left, f"row + i * {MMA_ROWS} + lane % 16", "k * 2 + lane / 16")
    else:
        term = "k * 16 + lane % 8 + lane / 16 * 8"
        place = _at(shape.left, term, "row / 8 + i * 2 + lane / 8 % 2")
    return _matrices("left", place, into, shape.left)


def matrices_of_right(shape: Shape, into: str) -> str:
    """The columns `j` and `j + 1`, eight each, of a warp's and a step `k`, into two registers of a
    thread each."""
    if shape.right.deep:
        line = f"column + j * {MMA_COLUMNS} + lane % 8 + lane / 16 * 8"
        place = _at(shape.right, line, "k * 2 + lane / 8 % 2")
    else:
        place = _at(shape.right, "k * 16 + lane % 16", "column / 8 + j + lane / 16")
    return _matrices("right", place, into, shape.right)


def _matrices(side: str, address: str, into: str, layout: TileLayout) -> str:
    names = ", ".join(f'"=r"({name})' for name in into.split(", "))
    turned = "" if layout.deep else ".trans"
    return (
        f'asm volatile("ldmatrix.sync.aligned.m8n8.x4{turned}.shared.b16 "\n'
        f'          "{{%0, %1, %2, %3}}, [%4];"\n'
        f'          : {names}\n          : "r"({side} + {address}) : "memory");'
    )


def _words_of_right(shape: Shape) -> str:
    """Words that nothing transposes: each thread reads its own."""
    term = "k * 8 + lane % 4 + h * 4"
    place = f"(column + (j + n) * {MMA_COLUMNS} + lane / 4)"
    return f"""\
#pragma unroll
        for (int n = 0; n < 2; ++n) {{
          #pragma unroll
          for (int h = 0; h < 2; ++h) {{
            asm volatile("ld.shared.b32 %0, [%1];" : "=r"(b[at][j + n][h])
              : "r"(right + {_at(shape.right, term, f"{place} / 4")} + {place} % 4 * 4) : "memory");
          }}
        }}"""


def _rounded(shape: Shape) -> str:
    """Of a float's 23 bits the tensor cores read ten: to the nearest, not cut off."""
    down, across = shape.fragments
    text = ""
    for name, count, each in (("a", down, 4), ("b", across, 2)):
        text += f"""
      #pragma unroll
      for (int i = 0; i < {count * each}; ++i)
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"({name}[at][i / {each}][i % {each}])
          : "f"(__uint_as_float({name}[at][i / {each}][i % {each}])));"""
    return text


# --------------------------------------------------------------------- four warps together

_MODES = {128: 1, 64: 2, 32: 3}
"""How a descriptor calls the widths of lines."""


def _descriptor(layout: TileLayout) -> int:
    """All of a tile's descriptor but where it begins. Strides in sixteen bytes: of eight lines of a
    panel, and where lines lie side by side from a panel to the next."""
    stride = 8 * layout.width // CHUNK
    leading = 1 if layout.deep else layout.panel_bytes // CHUNK
    return _MODES[layout.width] << 62 | stride << 32 | leading << 16


def _step(layout: TileLayout, k: int) -> int:
    """Bytes from a tile's beginning to where its step `k` begins."""
    if layout.deep:
        panel, within = divmod(k * STEP_BYTES, layout.width)
        return panel * layout.panel_bytes + within
    return k * (STEP_BYTES // layout.element_bytes) * layout.width


def _by_groups(shape: Shape, anew: bool) -> str:
    down = GROUP_ROWS * shape.left.width  # of the lines, where these are a panel's
    if not shape.left.deep:  # else of as many panels
        down = GROUP_ROWS * shape.left.element_bytes // shape.left.width * shape.left.panel_bytes
    begun = [
        "  const unsigned group = __shfl_sync(0xffffffffu, threadIdx.x >> 7, 0);",
        f"  const unsigned long long a = {_descriptor(shape.left):#x}ull"
        f" | ((left + group * {down}) >> 4 & 0x3fff);",
    ]
    terms = [f'"l"(a + {_step(shape.left, k) // CHUNK})' for k in range(shape.steps)]
    return "\n".join([*begun, group_products(shape, [[term] for term in terms], anew=anew)])


_PIECE = """\
  const unsigned lane = threadIdx.x & 31u;
  const unsigned piece = threadIdx.x / 64 * 8 + threadIdx.x / 32 % 2 * 2 + lane / 16 * 4;"""
"""Of a tile whose lines lie side by side, the first piece, four lines of four bytes, that a thread
of a group reads, of which it has line `lane / 4 % 4`; the other one is the next. A warp's sixteen
lines are four pieces of a panel's eight, such that the words which it reads at once, of four terms
each, are in 32 banks."""


def _by_groups_turned(shape: Shape, anew: bool) -> str:
    """Nothing turns words on their way to the tensor cores, but threads read any."""
    terms = STEP_BYTES // shape.left.element_bytes  # which the order of pieces repeats after
    place = f"{_at(shape.left, 'lane % 4 + h * 4', 'piece + i')} + lane / 4 % 4 * 4"
    read = f"""\
{_PIECE}
  unsigned a[{shape.steps}][4];
  #pragma unroll
  for (int h = 0; h < 2; ++h) {{
    #pragma unroll
    for (int i = 0; i < 2; ++i) {{
      const unsigned from = left + {place};
      #pragma unroll
      for (int k = 0; k < {shape.steps}; ++k)
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(a[k][h * 2 + i])
          : "r"(from + k * {terms * shape.left.width}) : "memory");
    }}
  }}"""
    names = [[f"a[{k}][{n}]" for n in range(4)] for k in range(shape.steps)]
    keeping = "".join(f', "+r"({name})' for of_step in names for name in of_step)
    lefts = [[f'"r"({name})' for name in of_step] for of_step in names]
    return "\n".join([read, group_products(shape, lefts, keeping, anew)])


def _laid_turned(shape: Shape, row_bytes: int) -> str:
    _, letter, _ = _SUMS[shape.sums]
    _, across = shape.fragments
    return f"""\
{_PIECE}
  to += lane % 4 * 2 * {row_bytes} + piece * {CHUNK} + lane / 4 % 4 * 4;
  #pragma unroll
  for (int j = 0; j < {across}; ++j) {{
    #pragma unroll
    for (int h = 0; h < 2; ++h) {{
      #pragma unroll
      for (int e = 0; e < 2; ++e)
        asm volatile("st.shared.b32 [%0], %1;"
          :: "r"(to + (j * {MMA_COLUMNS} + e) * {row_bytes} + h * {CHUNK}),
             "{letter}"(sums[j * 4 + h * 2 + e]) : "memory");
    }}
  }}"""


def group_products(
    shape: Shape, lefts: Sequence[Sequence[str]], keeping: str = "", anew: bool = False
) -> str:
    """All steps' products by a group, begun.

    Args:
        lefts: of each step the left operand, as operands of the instruction: a descriptor, or
            registers of a thread's own, which have rows of the operand as warps have them.
        keeping: operands that have to be as they are before the tensor cores begin, beside sums.
        anew: whatever the sums were.
    """
    _, letter, sums = _SUMS[shape.sums]
    of, columns = TYPES[shape.dtype], shape.right.lines
    depth = STEP_BYTES // shape.left.element_bytes
    held = ", ".join(f"%{n}" for n in range(shape.held))
    operands = ", ".join(f'"+{letter}"(sums[{n}])' for n in range(shape.held))
    first = operands.replace("+", "=") if anew else operands
    fenced = f"{'' if anew else operands}{keeping}"
    turned = [0 if one.deep else 1 for one in (shape.left, shape.right)]
    if len(lefts[0]) > 1:  # what is in registers lies one way
        turned = turned[1:]
    sides = "".join(f", {one}" for one in turned) if shape.left.element_bytes == 2 else ""
    scales = "" if shape.sums == "int32" else ", 1, 1"
    lines = [
        f"  const unsigned long long b = {_descriptor(shape.right):#x}ull | (right >> 4 & 0x3fff);",
        f'  asm volatile("wgmma.fence.sync.aligned;" : {fenced} :: "memory");',
    ]
    for k, left in enumerate(lefts):
        names = ", ".join(f"%{shape.held + n}" for n in range(len(left)))
        a = names if len(left) == 1 else f"{{{names}}}"
        b = f'"l"(b + {_step(shape.right, k) // CHUNK})'
        adds = 0 if anew and not k else 1
        lines.append(
            f'  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {adds}, 0;\\n"\n'
            f'    "wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{sums}.{of}.{of} "\n'
            f'    "{{{held}}}, {a}, %{shape.held + len(left)}, p{scales}{sides};\\n}}"\n'
            f'    : {operands if adds else first}\n    : {", ".join(left)}, {b} : "memory");'
        )
    lines.append(_asm("wgmma.commit_group.sync.aligned;"))
    return "\n".join(lines)
