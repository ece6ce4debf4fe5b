"""Kernels for GPUs, built on a machine that has none.

    python benchmarks/crossbuild.py RESULTS.json [--archs sm_80,sm_90] [--tried 4]

Matrix product, convolution, softmax, layer normalisation and the two products of attention, in
fp32, fp16 and bf16, one product in int8 and tf32 too, and the whole of attention in fp16 and bf16:
the untuned kernel (DLight's default) and the first schedules of each kind in its design space, in
the order of the hardware model where it has one. Each is compiled to machine code, whose registers,
shared memory, spills and size are the compiler's own word; `cuobjdump`, where it is found (on the
path or in NVIDIA's Python package), is asked whether the library's code is for the architecture.
Nothing is run.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm import te, topi

from tunefarm.devices.cuda_runtime import nvidia_packages
from tunefarm.devices.gpu import completed
from tunefarm.devices.target import Target, parse_target
from tunefarm.frontend.dtypes import TF32
from tunefarm.home import write_atomically
from tunefarm.measure.build import Builder, BuildRequest, Library
from tunefarm.measure.cuda.compiler import cuda_compiler
from tunefarm.search import replay
from tunefarm.search.candidate import UNTUNED
from tunefarm.search.spaces import design_space
from tunefarm.search.strategies.tiles import random_point

COMPILE_LIMIT_S = 120.0
DRAWS = 400


def sums(dtype: str) -> str:
    """The type that products are summed in, as in an imported model."""
    return "int32" if dtype == "int8" else "float32"


def rounded(tensor: Any, dtype: str) -> Any:
    return tensor if dtype in ("float32", "int8") else topi.cast(tensor, dtype)


def product(dtype: str) -> list[Any]:
    a, b = (te.placeholder((1024, 1024), dtype, n) for n in "ab")
    return [a, b, rounded(topi.nn.matmul(a, b, out_dtype=sums(dtype)), dtype)]


def convolution(dtype: str) -> list[Any]:
    image = te.placeholder((1, 56, 56, 64), dtype, "x")
    taps = te.placeholder((3, 3, 64, 64), dtype, "w")
    return [image, taps, rounded(topi.nn.conv2d_nhwc(image, taps, 1, 1, 1, sums(dtype)), dtype)]


def softmax(dtype: str, rows: int = 4096, columns: int = 1024) -> list[Any]:
    x = te.placeholder((rows, columns), dtype, "x")
    return [x, rounded(topi.nn.softmax(topi.cast(x, "float32"), axis=1), dtype)]


def layer_norm(dtype: str, rows: int = 4096, columns: int = 1024) -> list[Any]:
    x = te.placeholder((rows, columns), dtype, "x")
    scale, shift = (te.placeholder((columns,), dtype, n) for n in ("g", "b"))
    wide = [topi.cast(one, "float32") for one in (x, scale, shift)]
    return [x, scale, shift, rounded(topi.nn.layer_norm(*wide, [1], 1e-5), dtype)]


def scores(dtype: str) -> list[Any]:
    """Of attention: 12 heads, 512 queries and keys of 64."""
    q, k = (te.placeholder((12, 512, 64), dtype, n) for n in "qk")
    made = topi.nn.batch_matmul(q, k, out_dtype=sums(dtype), transpose_b=True)
    return [q, k, rounded(made, dtype)]


def mixed(dtype: str) -> list[Any]:
    """Of attention: its values, by their weights."""
    p, v = te.placeholder((12, 512, 512), dtype, "p"), te.placeholder((12, 512, 64), dtype, "v")
    made = topi.nn.batch_matmul(p, v, out_dtype=sums(dtype), transpose_b=False)
    return [p, v, rounded(made, dtype)]


def attention(dtype: str, heads: int = 12, queries: int = 512, depth: int = 64) -> list[Any]:
    """Whole, as an imported network has it: scores in float32, heads side by side in a row."""
    shape = (1, queries, heads, depth)
    q, k, v = (te.placeholder(shape, dtype, n) for n in "qkv")
    d, j = te.reduce_axis((0, depth), "d"), te.reduce_axis((0, queries), "j")

    def score(b: Any, h: Any, i: Any, j: Any) -> Any:
        left, right = q[b, i, h, d].astype("float32"), k[b, j, h, d].astype("float32")
        return te.sum(left * right, d)

    made = te.compute((1, heads, queries, queries), score, "scores")
    scaled = topi.multiply(made, tvm.tirx.const(depth**-0.5, "float32"))
    weights = topi.cast(topi.nn.softmax(scaled, axis=-1), dtype)

    def mix(b: Any, i: Any, h: Any, c: Any) -> Any:
        left, right = weights[b, h, i, j].astype("float32"), v[b, j, h, c].astype("float32")
        return te.sum(left * right, j)

    mixed = te.compute((1, heads, queries, depth), lambda b, h, i, c: mix(b, i, h, c), "mixed")
    return [q, k, v, topi.transpose(topi.cast(mixed, dtype), [0, 2, 1, 3])]


FLOATS = ("float32", "float16", "bfloat16")
HALVES = FLOATS[1:]
KERNELS: dict[str, tuple[Callable[[str], list[Any]], tuple[str, ...]]] = {
    "product 1024": (product, (*FLOATS, "int8", TF32)),
    "convolution 3x3": (convolution, FLOATS),
    "softmax": (softmax, FLOATS),
    "layer norm": (layer_norm, FLOATS),
    "attention q k": (scores, FLOATS),
    "attention p v": (mixed, FLOATS),
    "attention": (attention, HALVES),
}
"""By name: what makes one of a type, and the types."""
PLAIN, SKETCHES = "plain cores", "tensor cores"
"""Kinds of schedules: TVM's sketches for the one and the other, and families of our own, which have
their names."""
TILES, PLAIN_TILES, ROWS, ATTENTION = "tensor-tile", "plain-tile", "warp-rows", "attention-tile"
FED, ATTENTION_FED = f"{TILES}, engine", f"{ATTENTION}, engine"
"""Those whose operands Hopper's copy engine fetches."""
CLUSTERS = f"{TILES}, clusters"
"""And once for several blocks."""
KINDS = frozenset(
    {PLAIN, SKETCHES, TILES, PLAIN_TILES, FED, CLUSTERS, ROWS, ATTENTION, ATTENTION_FED}
)


def workload(kernel: str, dtype: str) -> Any:
    return workload_of(KERNELS[kernel][0](elements(dtype)))


def elements(dtype: str) -> str:
    return "float32" if dtype == TF32 else dtype


def kinds_of(dtype: str) -> frozenset[str]:
    """That are for a type alone: of tf32 those that use it, the others are float32's."""
    return frozenset({TILES, FED, CLUSTERS}) if dtype == TF32 else KINDS


def target_of(arch: str, dtype: str = "") -> Target:
    allowed = f":precision={TF32}" if dtype == TF32 else ""
    return completed(parse_target(f"cuda:arch={arch}{allowed}"))


def workload_of(tensors: list[Any]) -> Any:
    function = te.create_prim_func(tensors)
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--archs", default="sm_80,sm_90")
    parser.add_argument("--tried", type=int, default=4)
    a = parser.parse_args()
    rows: list[dict[str, Any]] = []
    builder = Builder(COMPILE_LIMIT_S)
    with tempfile.TemporaryDirectory() as directory:
        for arch in a.archs.split(","):
            for kernel, (_, types) in KERNELS.items():
                for dtype in types:
                    rows += built(builder, kernel, dtype, arch, a.tried, Path(directory))
                    print(json.dumps(rows[-1]), file=sys.stderr)
    builder.close()
    data = {"compiler": cuda_compiler(), "tvm": tvm.__version__, "rows": rows}
    write_atomically(a.results, (json.dumps(data, indent=1) + "\n").encode())
    print(table(rows))


def built(
    builder: Builder, kernel: str, dtype: str, arch: str, tried: int, directory: Path
) -> list[dict[str, Any]]:
    target = target_of(arch, dtype)
    module = workload(kernel, dtype)
    stem = re.sub(r"\W+", "-", f"{kernel}-{dtype}-{arch}")
    path = directory / f"{stem}.json"
    path.write_text(tvm.ir.save_json(module))
    rows = []
    for number, (how, trace) in enumerate(schedules(module, target, tried, kinds_of(dtype))):
        library = directory / f"{stem}-{number}.so"
        started = time.perf_counter()
        outcome = builder.build(BuildRequest(path, target, trace, library))
        row: dict[str, Any] = {"kernel": kernel, "dtype": dtype, "arch": arch, "schedule": how}
        row["seconds"] = round(time.perf_counter() - started, 2)
        if outcome.failure is not None:
            row["failure"] = f"{outcome.failure.kind}: {outcome.failure.message}"
        else:
            assert outcome.library is not None
            row.update(taken(outcome.library), cuobjdump=asked(library, directory))
        rows.append(row)
    return rows


def schedules(
    module: Any, target: Target, tried: int, kinds: frozenset[str] = KINDS
) -> list[tuple[str, str]]:
    """(which, trace): the untuned one, and the first of each of `kinds`."""
    space = design_space(module, target)
    points = [one.point for one in sorted(space.modelled(), key=lambda one: one.seconds)]
    rng = random.Random(0)
    points += [random_point(space.sketches, rng) for _ in range(DRAWS)]
    found: dict[str, list[str]] = {}
    known: dict[int, str] = {}
    for number, point in enumerate(points):
        if len(found.get(known.get(point.sketch, ""), ())) >= tried:
            continue
        proposal = space.realise(point, number)
        if proposal is None:
            continue
        how = kind_of(proposal.trace)
        if how in (PLAIN, SKETCHES):  # which have a sketch to themselves, and take long to apply
            known[point.sketch] = how
        if len(found.setdefault(how, [])) < tried and proposal.trace not in found[how]:
            found[how].append(proposal.trace)
    return [
        ("untuned", UNTUNED),
        *((how, trace) for how in found if how in kinds for trace in found[how]),
    ]


def kind_of(trace: str) -> str:
    point = replay.completed_by(trace) or ""
    family = point.partition(" ")[0]
    if "cluster=" in point:
        return f"{family}, clusters"
    if "feed=engine" in point:
        return f"{family}, engine"
    return family or (SKETCHES if replay.rules_of(trace) else PLAIN)


def taken(library: Library) -> dict[str, Any]:
    """Most of what any of its GPU kernels takes; their code together."""
    of = library.resources
    return {
        "gpu_kernels": len(of),
        "registers": max(one.registers for one in of),
        "threads": max(one.threads for one in of),
        "static_shared_bytes": max(one.shared_bytes for one in of),
        "spill_bytes": max(one.spill_bytes for one in of),
        "code_bytes": sum(one.code_bytes for one in of),
    }


def asked(library: Path, directory: Path) -> str:
    """The architecture by `cuobjdump`'s word; empty where there is no `cuobjdump`."""
    tool = cuobjdump()
    if tool is None:
        return ""
    content = library.read_bytes()
    cubin = directory / f"{library.stem}.cubin"
    cubin.write_bytes(content[content.index(b"\x7fELF", 64) :])
    said = subprocess.run([tool, "-elf", cubin], capture_output=True, text=True, check=False)
    match = re.search(r"\bsm=(\d+)", said.stdout)
    return f"sm_{match[1]}" if match else said.stderr.strip()[:100] or "nothing"


def cuobjdump() -> str | None:
    found = shutil.which("cuobjdump")
    inside = (str(f) for root in nvidia_packages() for f in root.glob("**/bin/cuobjdump"))
    return found or next(inside, None)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| kernel | type | arch | untuned: registers, code | schedules built | registers "
        "| spilling | code bytes | s each | cuobjdump |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    keys = dict.fromkeys((row["kernel"], row["dtype"], row["arch"]) for row in rows)
    for key in keys:
        mine = [row for row in rows if (row["kernel"], row["dtype"], row["arch"]) == key]
        untuned, tried = mine[0], mine[1:]
        good = [row for row in tried if "failure" not in row]
        kinds = sorted({row["schedule"] for row in good})
        counts = ", ".join(
            f"{sum(r['schedule'] == k for r in good)}/{sum(r['schedule'] == k for r in tried)} {k}"
            for k in kinds
        )
        names = sorted({row["cuobjdump"] for row in mine if "failure" not in row})
        first = untuned.get("failure") or f"{untuned['registers']}, {untuned['code_bytes']} bytes"
        lines.append(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {:.1f} | {} |".format(
                *key,
                first,
                counts or f"0/{len(tried)}",
                spread([row["registers"] for row in good]),
                sum(row["spill_bytes"] > 0 for row in good),
                spread([row["code_bytes"] for row in good]),
                sum(row["seconds"] for row in mine) / len(mine),
                ", ".join(names),
            )
        )
    return "\n".join(lines)


def spread(values: list[int]) -> str:
    return f"{min(values)} to {max(values)}" if values else "-"


if __name__ == "__main__":
    main()
