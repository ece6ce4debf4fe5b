"""Kernels on a GPU beside PyTorch's: built anywhere, measured by one bundle, put side by side.

    python benchmarks/gpu.py DIR [--arch sm_90] [--tried 24] [--kernels A,B]
    python benchmarks/gpu_lease.py OUT DIR                            (where the GPU is)
    python benchmarks/gpu.py NEXT --after DIR --out OUT [--tried 8]
    python benchmarks/gpu_lease.py OUT NEXT                           (where the GPU is)

Of each kernel the untuned schedule and the first of its design space are built, in the order of the
hardware model; each that runs must compute what the untuned one does. One kernel more writes where
it must not: its process has to die, and the next ones have to be measured all the same. For another
Python than this one there, see `wheels/` in docs/gpu.md.

After a first journey the search goes on where a job's would: of each kernel the fastest that were
right are measured again, and those that the guided strategy makes of what was measured.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from crossbuild import (
    ATTENTION_FED,
    CLUSTERS,
    FED,
    attention,
    elements,
    kind_of,
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
from gpu_tables import KERNELS, PLANTED, UNTUNED, report_on, seconds_of
from tvm import te, topi

from tunefarm.devices.target import Target
from tunefarm.frontend.dtypes import HALF, TF32
from tunefarm.frontend.relax.passes import flops_of
from tunefarm.frontend.relax.tir import argument_specs
from tunefarm.home import write_atomically
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.bundles.bundle import write_bundle
from tunefarm.measure.bundles.runtime_files import runtime_files
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.files import needs
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import ScreenRequest
from tunefarm.scheduler.exchange import WHEELS
from tunefarm.search.spaces import design_space
from tunefarm.search.strategy import Evaluated, make_strategy

COMPILE_LIMIT_S = 300.0
LARGE = str(max(PRODUCTS))
RUN_LIMIT_S, LARGE_LIMIT_S = 8.0, 30.0
"""For which a schedule may run, and all that is compared meanwhile: one that hangs costs as much.
The host looks at the largest products' 67 million elements for seconds."""
FIRST = 2
"""Schedules of a kernel and a kind that are measured before all others."""
AGAIN = 2
"""Of a first journey's, that are measured once more in a second."""
DRAWN = 3
"""Times as many points are asked for as are wanted: some do not fit, some are known."""


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
    parser.add_argument("directory", type=Path)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--tried", type=int, default=24)
    parser.add_argument("--kernels", default="")
    parser.add_argument("--after", type=Path, help="a directory whose bundle has been measured")
    parser.add_argument("--out", type=Path, help="of `gpu_lease.py`, for --after")
    a = parser.parse_args()
    if (a.after is None) != (a.out is None):
        parser.error("--after and --out go together")
    chosen = {n: f for n, f in kernels().items() if n in a.kernels.split(",") or not a.kernels}
    known = measured(a.after, a.out) if a.after is not None else {}
    build(a.directory, a.arch, a.tried, chosen, known)


Known = dict[str, dict[str, float | None]]
"""By kernel and trace: seconds, or None of what did not run or was wrong."""


def measured(directory: Path, out: Path) -> Known:
    report = report_on(directory, KERNELS, out)
    if report is None:
        raise SystemExit(f"there is no report on {directory / KERNELS}")
    found: Known = {}
    for number, row in enumerate(json.loads((directory / "kernels.json").read_text())):
        if number in report.answers and row["trace"]:
            seconds = seconds_of(report.answers[number])
            found.setdefault(row["kernel"], {})[row["trace"]] = seconds
    return found


def refined(
    module: Any,
    target: Target,
    tried: int,
    kinds: frozenset[str],
    known: dict[str, float | None],
) -> list[tuple[str, str]]:
    """(which, trace): the untuned one, the fastest known, and `tried` that these lead to."""
    space = design_space(module, target)
    strategy = make_strategy("guided", space, 0)
    located = [(space.locate(trace), seconds) for trace, seconds in known.items()]
    strategy.update([Evaluated(point, s) for point, s in located if point is not None])
    right = {trace: seconds for trace, seconds in known.items() if seconds is not None}
    traces = sorted(right, key=lambda trace: right[trace])[:AGAIN]
    most = len(traces) + tried
    for number, point in enumerate(strategy.suggest(DRAWN * tried, ())):
        proposal = space.realise(point, number) if len(traces) < most else None
        if proposal is None or proposal.trace in known or kind_of(proposal.trace) not in kinds:
            continue
        traces.append(proposal.trace)
    return [(UNTUNED, ""), *((kind_of(trace), trace) for trace in traces)]


def build(
    directory: Path,
    arch: str,
    tried: int,
    chosen: dict[str, Callable[[], list[Any]]],
    known: Known,
) -> None:
    root = directory / "files"
    builder = Builder(COMPILE_LIMIT_S)
    made: list[tuple[dict[str, str], ScreenRequest]] = []
    for number, (name, make) in enumerate(chosen.items()):
        function = te.create_prim_func(make()).with_attr("global_symbol", "main")
        module = tvm.IRModule({"main": function})
        dtype = name.rpartition(" ")[2]
        target = target_of(arch, dtype)
        kinds = kinds_of(dtype)
        if name in known:
            ways = refined(module, target, tried, kinds, known[name])
        else:
            ways = schedules(module, target, tried, kinds)
        protocol = Protocol(run_limit_s=LARGE_LIMIT_S if LARGE in name else RUN_LIMIT_S)
        mine = _requests(builder, root, f"k{number}", module, target, ways, protocol)
        made += [({"kernel": name, **how}, request) for how, request in mine]
        print(f"{name}: {len(mine)} of {len(ways)} built", flush=True)
        if not number:  # between two kernels, so that those behind it show what it leaves
            good, bad = (
                _requests(builder, root, stem, module, target, [(UNTUNED, "")], protocol)[0][1]
                for stem, module in (("sound", sound_twin()), ("fault", planted()))
            )
            fault = ScreenRequest(bad.library, good.facts, protocol, None)
            made.append(({"kernel": "sound twin", "schedule": UNTUNED, "trace": ""}, good))
            made.append(({"kernel": PLANTED, "schedule": PLANTED, "trace": ""}, fault))
    builder.close()
    made = in_passes(made)
    rows, requests = [row for row, _ in made], [request for _, request in made]
    files = [file for one in requests for file in needs(one) if file.exists()]
    runtime = runtime_files(directory / WHEELS, for_gpu=True)
    path = directory / KERNELS
    target = target_of(arch)
    # References of large kernels are gigabytes together, and the table does not need them.
    write_bundle(path, "gpu", target, "", requests, root, files, runtime, returns=False)
    write_atomically(directory / "kernels.json", (json.dumps(rows, indent=1) + "\n").encode())
    print(f"{path}: {len(requests)} measurements, {path.stat().st_size / 2**20:.0f} MiB")


Made = tuple[dict[str, str], ScreenRequest]
"""A row of the table, and what measures it."""


def in_passes(made: list[Made], key: str = "kernel") -> list[Made]:
    """In the order of what is most worth knowing, for a machine that is lent for minutes: untuned
    schedules and the first few of each kind that runs by threads alone; then what asks for
    hardware that waits for signals, and could wait for ever; then all the others, those last that
    the host looks at for seconds."""
    seen: Counter[tuple[str, str]] = Counter()

    def turn(one: Made) -> int:
        row, _ = one
        seen[row[key], row["schedule"]] += 1
        if seen[row[key], row["schedule"]] > FIRST:
            return 3 if LARGE in row.get("kernel", "") else 2
        return int(row["schedule"] in (FED, CLUSTERS, ATTENTION_FED))

    turns = [(turn(one), one) for one in made]
    return [one for number in range(4) for at, one in turns if at == number]


def _requests(
    builder: Builder,
    root: Path,
    stem: str,
    module: Any,
    target: Target,
    ways: list[tuple[str, str]],
    protocol: Protocol,
) -> list[Made]:
    """(which schedule, its request) of what compiles; the untuned one first."""
    path = root / f"{stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tvm.ir.save_json(module))
    args = argument_specs(module["main"])
    facts = KernelFacts(stem, args, flops_of(module), root / f"{stem}.npz")
    found: list[Made] = []
    for number, (how, trace) in enumerate(ways):
        library = root / f"{stem}-{number}.so"
        outcome = builder.build(BuildRequest(path, target, trace, library))
        if outcome.library is not None:
            request = ScreenRequest(outcome.library, facts, protocol, None, not trace)
            found.append(({"schedule": how, "trace": trace}, request))
            continue
        print(f"{stem}, {how}: {outcome.failure}")
        if not trace:
            return []
    return found


if __name__ == "__main__":
    main()
