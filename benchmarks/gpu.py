"""Kernels on a GPU beside PyTorch's: built anywhere, measured by one bundle, put side by side.

    python benchmarks/gpu.py build DIR [--arch sm_90] [--tried 24] [--kernels A,B]
    python DIR/gpu.bundle && python benchmarks/gpu_rivals.py DIR/rivals.json   (where the GPU is)
    python benchmarks/gpu.py table DIR

Of each kernel the untuned schedule and the first of its design space are built, in the order of the
hardware model; each that runs must compute what the untuned one does. One kernel more writes where
it must not: its process has to die, and the next ones have to be measured all the same. The second
line needs the driver, Python, NumPy and PyTorch; nothing of tunefarm is installed there. For
another Python than this one, see `wheels/` in docs/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from crossbuild import (
    attention,
    elements,
    kinds_of,
    layer_norm,
    mixed,
    rounded,
    schedules,
    scores,
    softmax,
    sums,
    target_of,
)
from gpu_shapes import ATTENTION, CONVOLUTIONS, LONG_ATTENTION, PRODUCTS, said
from tvm import te, topi

from tunefarm.devices.target import Target
from tunefarm.frontend.dtypes import HALF, TF32
from tunefarm.frontend.relax_passes import flops_of
from tunefarm.frontend.tir import argument_specs
from tunefarm.home import write_atomically
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.bundle import read_report, report_of, write_bundle
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.files import needs
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.runner import ScreenRequest
from tunefarm.measure.runtime_files import runtime_files
from tunefarm.scheduler.exchange import WHEELS

COMPILE_LIMIT_S = 300.0
PARTS = ("attention q k", "attention softmax", "attention p v")
"""Of attention, which `table` has as their sum: rivals have one kernel, as we have in 16 bits."""
_IN_THREE = "attention in three"
PLANTED = "planted fault"


def product(size: int, dtype: str) -> list[Any]:
    a, b = (te.placeholder((size, size), dtype, n) for n in "ab")
    return [a, b, rounded(topi.nn.matmul(a, b, out_dtype=sums(dtype)), dtype)]


def convolution(size: int, channels: int, filters: int, taps: int, dtype: str) -> list[Any]:
    image = te.placeholder((1, size, size, channels), dtype, "x")
    weights = te.placeholder((taps, taps, channels, filters), dtype, "w")
    made = topi.nn.conv2d_nhwc(image, weights, 1, taps // 2, 1, sums(dtype))
    return [image, weights, rounded(made, dtype)]


def kernels() -> dict[str, Callable[[], list[Any]]]:
    """By name and type; `gpu_rivals.py` knows the same names."""
    found: dict[str, Callable[[], list[Any]]] = {}
    for dtype in ("float16", "float32", TF32):
        of = elements(dtype)
        for size in PRODUCTS:
            found[f"product {size} {dtype}"] = lambda s=size, d=of: product(s, d)
        for shape in CONVOLUTIONS:
            found[f"convolution {said(shape)} {dtype}"] = lambda s=shape, d=of: convolution(*s, d)
        if dtype == TF32:  # the others do not multiply, or in few terms
            continue
        found[f"softmax {dtype}"] = lambda d=dtype: softmax(d)
        found[f"layer norm {dtype}"] = lambda d=dtype: layer_norm(d)
        heads, rows, _ = ATTENTION
        if dtype in HALF:
            found[f"attention {dtype}"] = lambda d=dtype: attention(d, *ATTENTION)
            found[f"attention {said(LONG_ATTENTION)} {dtype}"] = lambda d=dtype: attention(
                d, *LONG_ATTENTION
            )
        found[f"attention softmax {dtype}"] = lambda d=dtype, n=(heads * rows, rows): softmax(d, *n)
        found[f"attention q k {dtype}"] = lambda d=dtype: scores(d)
        found[f"attention p v {dtype}"] = lambda d=dtype: mixed(d)
    return found


def sound_twin() -> Any:
    """What the planted fault should have computed."""
    x = te.placeholder((4096,), "float32", "x")
    y = te.compute((4096,), lambda i: x[i] + 1.0, name="y")
    return tvm.IRModule({"main": te.create_prim_func([x, y]).with_attr("global_symbol", "main")})


def planted() -> Any:
    """Every thread writes 4 GiB beyond the result."""
    text = sound_twin().script()
    wrong = re.sub(r"^(\s*)y\[(\w+)\] =", r"\1y[\2 + 1073741824] =", text, flags=re.MULTILINE)
    assert wrong != text, text
    return tvm.script.from_source(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("directory", type=Path)
    building.add_argument("--arch", default="sm_90")
    building.add_argument("--tried", type=int, default=24)
    building.add_argument("--kernels", default="")
    table_ = commands.add_parser("table")
    table_.add_argument("directory", type=Path)
    a = parser.parse_args()
    if a.command == "build":
        chosen = {n: f for n, f in kernels().items() if n in a.kernels.split(",") or not a.kernels}
        build(a.directory, a.arch, a.tried, chosen)
    else:
        print(table(a.directory))


def build(
    directory: Path, arch: str, tried: int, chosen: dict[str, Callable[[], list[Any]]]
) -> None:
    root = directory / "files"
    builder = Builder(COMPILE_LIMIT_S)
    requests: list[ScreenRequest] = []
    rows: list[dict[str, Any]] = []
    protocol = Protocol(run_limit_s=60.0)
    for number, (name, make) in enumerate(chosen.items()):
        function = te.create_prim_func(make()).with_attr("global_symbol", "main")
        module = tvm.IRModule({"main": function})
        dtype = name.rpartition(" ")[2]
        target = target_of(arch, dtype)
        ways = schedules(module, target, tried, kinds_of(dtype))
        made = _requests(builder, root, f"k{number}", module, target, ways, protocol)
        requests += [request for _, request in made]
        rows += [{"kernel": name, "schedule": how} for how, _ in made]
        print(f"{name}: {len(made)} of {len(ways)} built", flush=True)
        if not number:  # between two kernels, so that those behind it show what it leaves
            good, bad = (
                _requests(builder, root, stem, module, target, [("untuned", "")], protocol)[0][1]
                for stem, module in (("sound", sound_twin()), ("fault", planted()))
            )
            requests += [good, ScreenRequest(bad.library, good.facts, protocol, None)]
            rows += [{"kernel": "sound twin", "schedule": "untuned"}]
            rows += [{"kernel": PLANTED, "schedule": PLANTED}]
    builder.close()
    files = [file for one in requests for file in needs(one) if file.exists()]
    runtime = runtime_files(directory / WHEELS, for_gpu=True)
    path = directory / "gpu.bundle"
    write_bundle(path, "gpu", target_of(arch), "", requests, root, files, runtime)
    write_atomically(directory / "kernels.json", (json.dumps(rows, indent=1) + "\n").encode())
    print(f"{path}: {len(requests)} measurements, {path.stat().st_size / 2**20:.0f} MiB")


def _requests(
    builder: Builder,
    root: Path,
    stem: str,
    module: Any,
    target: Target,
    ways: list[tuple[str, str]],
    protocol: Protocol,
) -> list[tuple[str, ScreenRequest]]:
    """(which schedule, its request) of what compiles; the untuned one first."""
    path = root / f"{stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tvm.ir.save_json(module))
    args = argument_specs(module["main"])
    facts = KernelFacts(stem, args, flops_of(module), root / f"{stem}.npz")
    found = []
    for number, (how, trace) in enumerate(ways):
        library = root / f"{stem}-{number}.so"
        outcome = builder.build(BuildRequest(path, target, trace, library))
        if outcome.library is not None:
            request = ScreenRequest(outcome.library, facts, protocol, None, not trace)
            found.append((how, request))
            continue
        print(f"{stem}, {how}: {outcome.failure}")
        if not trace:
            return []
    return found


def table(directory: Path) -> str:
    """Fastest of ours by kernel, in microseconds, and the rivals' times as ratios to it."""
    rows = json.loads((directory / "kernels.json").read_text())
    report = read_report(report_of(directory / "gpu.bundle"), directory)
    rivals_file = directory / "rivals.json"
    rivals = json.loads(rivals_file.read_text()) if rivals_file.exists() else {"kernels": {}}
    names = sorted({name for times in rivals["kernels"].values() for name in times})
    paper = ", whose times are no evidence" if report.device.is_emulated else ""
    lines = [
        f"{report.device.sku}{paper}; rivals: {rivals.get('versions', 'none')}\n",
        "| kernel | untuned us | tuned us | by | right, of | " + " | ".join(names) + " |",
        "|---" * (5 + len(names)) + "|",
    ]
    rows_of = {
        kernel: _row([o for o in enumerate(rows) if o[1]["kernel"] == kernel], report.answers)
        for kernel in dict.fromkeys(row["kernel"] for row in rows)
    }
    for dtype in ("float16", "float32"):
        parts = [rows_of.get(f"{part} {dtype}") for part in PARTS]
        if all(part is not None and part.best_s for part in parts):
            rows_of[f"{_IN_THREE} {dtype}"] = _together([part for part in parts if part])
    for kernel, row in rows_of.items():
        times = rivals["kernels"].get(kernel.replace(_IN_THREE, "attention"), {})
        ratios = [
            f"{times[n] / row.best_s:.2f}" if times.get(n) and row.best_s else "-" for n in names
        ]
        lines.append("| " + " | ".join([kernel, *row.cells(), *ratios]) + " |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Row:
    """A kernel's untuned time and its best, in seconds; 0 where there is none."""

    untuned_s: float
    best_s: float
    by: str
    right: int
    tried: int

    def cells(self) -> list[str]:
        times = [f"{one * 1e6:.1f}" if one else "-" for one in (self.untuned_s, self.best_s)]
        return [*times, self.by, f"{self.right}, {self.tried}"]


def _row(mine: list[Any], answers: Any) -> Row:
    times = {
        n: statistics.median(answers[n].screening.samples)
        for n, _ in mine
        if n in answers and answers[n].screening is not None
    }
    if not times:
        failures = {answers[n].failure.kind.value for n, _ in mine if n in answers}
        return Row(0.0, 0.0, ", ".join(sorted(failures)) or "not run", 0, len(mine))
    best = min(times, key=lambda n: times[n])
    how = next(row["schedule"] for n, row in mine if n == best)
    return Row(times.get(mine[0][0], 0.0), times[best], how, len(times), len(mine))


def _together(parts: list[Row]) -> Row:
    return Row(
        sum(part.untuned_s for part in parts),
        sum(part.best_s for part in parts),
        "the three together",
        sum(part.right for part in parts),
        sum(part.tried for part in parts),
    )


if __name__ == "__main__":
    main()
