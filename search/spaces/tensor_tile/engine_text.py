"""CUDA C++ of what passes between Hopper's copy engine, the one thread that asks it for tiles, and
the groups that multiply them.

Each step in shared memory has two barriers: one says that its operands are there, the other
that all groups have read them. Their phases, and the bytes that one waits for: NVIDIA, Parallel
Thread Execution ISA, "Parallel Synchronization and Communication Instructions: mbarrier", and "Data
Movement and Conversion Instructions: cp.async.bulk.tensor".
"""

from __future__ import annotations

from tunefarm.devices.gpu import CLUSTERED, EXCHANGED
from tunefarm.search.spaces.tensor_tile.device_text import GROUP
from tunefarm.search.spaces.written import Function, device_function

THERE, READ = 0, 8
"""Bytes from a step's pair of barriers to each of them."""
PAIR = 16


def barriers_made(stages: int, groups: int, cluster: int = 1) -> Function:
    """All of a block's, seen by its cluster and by the engine; a step has been read when all
    `groups` of all blocks have."""
    body = f"""\
  if (threadIdx.x == 0) {{
    #pragma unroll
    for (int stage = 0; stage < {stages}; ++stage) {{
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
        :: "r"(barriers + stage * {PAIR} + {THERE}) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], {groups * cluster};"
        :: "r"(barriers + stage * {PAIR} + {READ}) : "memory");
    }}
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }}
{_met(cluster)}"""
    name = f"tunefarm_barriers_made_{stages}_{groups}{_of(cluster)}"
    return device_function(name, "void", "unsigned barriers", body)


def _of(cluster: int) -> str:
    return "" if cluster == 1 else f"_{CLUSTERED}{cluster}"


def _met(cluster: int) -> str:
    """What others are to know of barriers has a fence of its own; else blocks leave each other
    nothing but their places, so that none has to wait for the GPU's whole memory, as it would with
    `.release`. (NVIDIA's CUTLASS has the same pair, `cluster_arrive_relaxed`, `cluster_wait`.)"""
    text = "  __syncthreads();"
    if cluster > 1:
        text += """
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");"""
    return text


def registers(count: int, more: bool) -> Function:
    """As many for each thread of a group from now on, `more` than it was launched with, or fewer:
    what those that only ask do not need, those that multiply may have."""
    how = "inc" if more else "dec"
    body = f'  asm volatile("setmaxnreg.{how}.sync.aligned.u32 {count};");'
    return device_function(f"{EXCHANGED}{count}", "void", "", body)


def met(cluster: int = 1) -> Function:
    """Until all threads of the block are here, or of all blocks of the cluster."""
    return device_function(f"tunefarm_met{_of(cluster)}", "void", "", _met(cluster))


def rank() -> Function:
    """Which of its cluster's blocks a thread's is."""
    body = """\
  unsigned found;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(found));
  return found;"""
    return device_function("tunefarm_rank", "unsigned", "", body)


def used_soon() -> Function:
    """That the engine will be asked by this map."""
    body = '  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");'
    return device_function("tunefarm_used_soon", "void", "unsigned long long map", body)


def waited() -> Function:
    """Until a barrier's phase of that parity is over."""
    body = """\
  unsigned over;
  do {
    asm volatile("{\\n.reg .pred p;\\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\n"
      "selp.u32 %0, 1, 0, p;\\n}"
      : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
  } while (!over);"""
    arguments = "unsigned barrier, unsigned parity"
    return device_function("tunefarm_waited", "void", arguments, body)


def expected(size: int) -> Function:
    """That many bytes, by the barrier that says when they are there."""
    body = (
        f'  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], {size};"\n'
        '    :: "r"(barrier) : "memory");'
    )
    return device_function(f"tunefarm_expected_{size}", "void", "unsigned barrier", body)


def fetched(rank: int, cluster: int = 1) -> Function:
    """A box from its corner on, whose coordinates are innermost first; `barrier` counts its bytes.
    All blocks of the cluster get it at that place, and their own barriers count it."""
    names = [f"c{n}" for n in range(rank)]
    places = ", ".join(f"%{n + 2}" for n in range(rank))
    operands = ", ".join(f'"r"({name})' for name in names)
    several, whom, them = "", "", ""
    if cluster > 1:
        several, whom = ".multicast::cluster", f", %{rank + 3}"
        them = f', "h"((unsigned short){(1 << cluster) - 1})'
    body = (
        f'  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier'
        f'::complete_tx::bytes{several} "\n'
        f'    "[%0], [%1, {{{places}}}], [%{rank + 2}]{whom};"\n'
        f'    :: "r"(to), "l"(map), {operands}, "r"(barrier){them} : "memory");'
    )
    arguments = ["unsigned to", "unsigned long long map", "unsigned barrier"]
    arguments += [f"int {name}" for name in names]
    name = f"tunefarm_fetched_{rank}{_of(cluster)}"
    return device_function(name, "void", ", ".join(arguments), body)


def read(cluster: int = 1) -> Function:
    """A group has done with a step's operands; `barrier`, of each of its cluster's blocks, counts
    groups. A predicate, and no branch: what follows, the threads of a group do together.

    Another block is told in the same way, as CUTLASS does (`ClusterBarrier::arrive`), and not with
    all that was written before (`.release.cluster`): that waits for the GPU's whole memory, each
    step, and whoever reads has written nothing. What threads have read for tensor cores these have
    multiplied by then (CUTLASS's main loop with a left operand in registers does the same)."""
    arrived = '@p mbarrier.arrive.shared::cta.b64 _, [%0];\\n"'
    if cluster > 1:
        arrived = ".reg .b32 other;\\n" + "".join(
            f"mapa.shared::cluster.u32 other, %0, {n};\\n"
            "@p mbarrier.arrive.shared::cluster.b64 _, [other];\\n"
            for n in range(cluster)
        )
        arrived += '"'
    body = f"""\
  asm volatile("{{\\n.reg .pred p;\\nsetp.eq.u32 p, %1, 0;\\n"
    "{arrived} "}}"
    :: "r"(barrier), "r"(threadIdx.x % {GROUP}) : "memory");"""
    return device_function(f"tunefarm_read{_of(cluster)}", "void", "unsigned barrier", body)
