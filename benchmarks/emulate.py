"""Whether kernels for GPUs compute what they are to, on a machine that has no GPU.

    python benchmarks/emulate.py RESULTS.json [--archs sm_80,sm_90] [--tried 10]

Matrix products of even and odd sizes, a convolution, softmax, layer normalisation, the two products
of attention and the whole of it, in fp32, fp16, bf16, tf32 and int8 where they can be so: of each
the untuned kernel and the first schedules of each kind in its design space. Each is built as it
always is, and run on a GPU of paper (`measure.cuda.emulator`) under TVM's own CUDA runtime, for
two inputs; the same kernel on the processor says what is right. It stops at addresses that nobody
allocated and at threads that do not wait for each other. Nothing of it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tvm
from crossbuild import (
    ATTENTION,
    ATTENTION_FED,
    CLUSTERS,
    FED,
    FLOATS,
    HALVES,
    PLAIN,
    PLAIN_TILES,
    ROWS,
    SKETCHES,
    TILES,
    attention,
    elements,
    kinds_of,
    layer_norm,
    rounded,
    schedules,
    softmax,
    sums,
    target_of,
    workload_of,
)
from tvm import te, topi

from tunefarm.devices.target import make_target
from tunefarm.frontend.dtypes import TF32
from tunefarm.frontend.relax.tir import argument_specs
from tunefarm.home import write_atomically
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.cuda.compiler import cuda_compiler
from tunefarm.measure.cuda.emulator.stand_in import environment
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import ScreenRequest
from tunefarm.measure.runner import Runner
from tunefarm.search.candidate import UNTUNED

LIMIT_S = 300.0
PROTOCOL = Protocol(run_limit_s=LIMIT_S, run_floor_s=LIMIT_S, screen_samples=1, screen_s=1e-6)
HOST = make_target("llvm", {"num-cores": 2})


def product(rows: int, depth: int, columns: int) -> Callable[[str], list[Any]]:
    def made(dtype: str) -> list[Any]:
        a, b = te.placeholder((rows, depth), dtype, "a"), te.placeholder((depth, columns), dtype)
        return [a, b, rounded(topi.nn.matmul(a, b, out_dtype=sums(dtype)), dtype)]

    return made


def convolution(dtype: str) -> list[Any]:
    x, w = te.placeholder((1, 14, 14, 32), dtype, "x"), te.placeholder((3, 3, 32, 32), dtype, "w")
    return [x, w, rounded(topi.nn.conv2d_nhwc(x, w, 1, 1, 1, sums(dtype)), dtype)]


def half_of_attention(turned: bool) -> Callable[[str], list[Any]]:
    """Two heads: queries by keys (the right operand turned), or weights by values."""

    def made(dtype: str) -> list[Any]:
        left = te.placeholder((2, 64, 64 if turned else 128), dtype, "a")
        right = te.placeholder((2, 64, 64) if turned else (2, 128, 64), dtype, "b")
        out = topi.nn.batch_matmul(left, right, out_dtype=sums(dtype), transpose_b=turned)
        return [left, right, rounded(out, dtype)]

    return made


PRODUCTS = (*FLOATS, TF32)
KERNELS: dict[str, tuple[Callable[[str], list[Any]], tuple[str, ...]]] = {
    "product 128": (product(128, 128, 128), (*PRODUCTS, "int8")),
    "product 256x192x64": (product(256, 192, 64), HALVES),
    "product 60x72x100": (product(60, 72, 100), (*PRODUCTS, "int8")),
    "product 33x65x17": (product(33, 65, 17), FLOATS),
    "convolution 3x3": (convolution, PRODUCTS),
    "softmax": (partial(softmax, rows=64, columns=256), FLOATS),
    "layer norm": (partial(layer_norm, rows=64, columns=256), FLOATS),
    "attention q k": (half_of_attention(True), (*PRODUCTS, "int8")),
    "attention p v": (half_of_attention(False), PRODUCTS),
    "attention": (partial(attention, heads=2, queries=100), HALVES),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--archs", default="sm_80,sm_90")
    parser.add_argument("--tried", type=int, default=10)
    parser.add_argument("--kernels", default=",".join(KERNELS))
    a = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for arch in a.archs.split(","):
            os.environ.update(environment(Path(directory), arch))
            bench = Bench(Path(directory))
            for kernel in a.kernels.split(","):
                for dtype in KERNELS[kernel][1]:
                    rows += bench.checked(kernel, dtype, arch, a.tried)
            bench.close()
    data = {"compiler": cuda_compiler(), "tvm": tvm.__version__, "rows": rows}
    write_atomically(a.results, (json.dumps(data, indent=1) + "\n").encode())
    print(table(rows))


class Bench:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._builder = Builder(LIMIT_S)
        self._host = Runner(2, PROTOCOL.memory_bytes)
        self._gpu = Runner(2, PROTOCOL.memory_bytes, kind="cuda")

    def close(self) -> None:
        for one in (self._builder, self._host, self._gpu):
            one.close()

    def checked(self, kernel: str, dtype: str, arch: str, tried: int) -> list[dict[str, Any]]:
        module, target = workload_of(KERNELS[kernel][0](elements(dtype))), target_of(arch, dtype)
        stem = re.sub(r"\W+", "-", f"{kernel}-{dtype}-{arch}")
        path = self._directory / f"{stem}.json"
        path.write_text(tvm.ir.save_json(module))
        args = tuple(argument_specs(module["main"]))
        facts = KernelFacts(stem, args, 1e6, self._directory / f"{stem}.npz")
        of_host = self._builder.build(BuildRequest(path, HOST, UNTUNED, path.with_suffix(".so")))
        assert of_host.library is not None, of_host.failure
        made = self._host.screen(ScreenRequest(of_host.library, facts, PROTOCOL, None, True))
        assert made.failure is None, made.failure
        rows = []
        for number, (how, trace) in enumerate(schedules(module, target, tried, kinds_of(dtype))):
            library = self._directory / f"{stem}-{number}.so"
            built = self._builder.build(BuildRequest(path, target, trace, library))
            failure = built.failure
            if built.library is not None:
                request = ScreenRequest(built.library, facts, PROTOCOL, None)
                failure = self._gpu.screen(request).failure
            said = f"{failure.kind}: {failure.message}" if failure else ""
            rows.append(
                {"kernel": kernel, "dtype": dtype, "arch": arch, "schedule": how, "failure": said}
            )
            print(json.dumps(rows[-1]), file=sys.stderr)
        return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Right ones of those tried, by kernel and kind of schedule, and what became of the others."""
    own = (PLAIN_TILES, TILES, FED, CLUSTERS, ROWS, ATTENTION, ATTENTION_FED)
    kinds = ("untuned", PLAIN, SKETCHES, *own)
    lines = [
        "| kernel | type | " + " | ".join(kinds) + " | others |",
        "|---" * (3 + len(kinds)) + "|",
    ]
    for key in dict.fromkeys((row["kernel"], row["dtype"]) for row in rows):
        mine = [row for row in rows if (row["kernel"], row["dtype"]) == key]
        counts = []
        for how in kinds:
            some = [row for row in mine if row["schedule"] == how]
            right = sum(not row["failure"] for row in some)
            counts.append(f"{right}/{len(some)}" if some else "")
        others = Counter(row["failure"].split(":")[0] for row in mine if row["failure"])
        named = ", ".join(f"{count} {kind}" for kind, count in others.items())
        lines.append("| " + " | ".join([*key, *counts, named]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
