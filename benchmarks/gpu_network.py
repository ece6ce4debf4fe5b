"""A whole network on a GPU that no network leads to, in two journeys of one bundle each.

    python benchmarks/gpu_network.py build DIR resnet50 [--dtype float16] [--arch sm_90]
    python benchmarks/gpu_lease.py OUT DIR                              (where the GPU is)
    python benchmarks/gpu_network.py choose DIR [--out OUT]
    python benchmarks/gpu_lease.py OUT DIR                              (where the GPU is)

First every kernel's likeliest schedules are measured, with arguments as cold as in the network;
then the network of the fastest right ones beside the same graph untuned, in processes of its own,
and what it computes is held against ONNX Runtime. (A job does the same by `submit
--measure-by-bundle` and decides by races and finals, in more journeys.)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from crossbuild import COMPILE_LIMIT_S, elements, schedules, target_of
from gpu import RUN_LIMIT_S, Made, in_passes
from gpu_tables import NETWORK, NETWORKS_KERNELS, report_on, seconds_of

from tunefarm.frontend.importer import ImportRequest, import_model
from tunefarm.frontend.program import Program, load_program
from tunefarm.home import write_atomically
from tunefarm.measure.assemble import AssembleRequest, assemble
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.bundles.bundle import Report, write_bundle
from tunefarm.measure.bundles.runtime_files import runtime_files
from tunefarm.measure.expected import ExpectedRequest, make_expected
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.files import needs
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import CheckRequest, ModelRequest, ScreenRequest
from tunefarm.scheduler.exchange import WHEELS
from tunefarm.search.candidate import UNTUNED
from tunefarm.search.replay import load_workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("directory", type=Path)
    building.add_argument("network", help="of the zoo, or a file")
    building.add_argument("--dtype", default="float16")
    building.add_argument("--arch", default="sm_90")
    building.add_argument("--tried", type=int, default=12)
    choosing = commands.add_parser("choose")
    choosing.add_argument("directory", type=Path)
    choosing.add_argument("--out", type=Path, default=Path(), help="of `gpu_lease.py`")
    a = parser.parse_args()
    if a.command == "build":
        build(a.directory, a.network, a.dtype, a.arch, a.tried)
    else:
        choose(Plan(a.directory), a.out)


class Plan:
    """What one call leaves to the next, in its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.root = directory, directory / "files"
        said = json.loads((directory / "plan.json").read_text())
        self.network, self.dtype = said["network"], said["dtype"]
        self.target = target_of(said["arch"], said["dtype"])
        self.protocol = Protocol(run_limit_s=said["run_limit_s"], model_processes=6)
        self.rows: list[dict[str, Any]] = said["rows"]

    @property
    def program(self) -> Program:
        return load_program(self.root / "program")

    def write(self, name: str, requests: list[Any]) -> None:
        files = [file for one in requests for file in needs(one) if file.exists()]
        runtime = runtime_files(self.directory / WHEELS, for_gpu=True)
        path = self.directory / name
        write_bundle(
            *(path, "network", self.target, "", requests, self.root, files, runtime),
            returns=False,
        )
        print(f"{path}: {len(requests)} measurements, {path.stat().st_size / 2**20:.0f} MiB")


def build(directory: Path, network: str, dtype: str, arch: str, tried: int) -> None:
    root = directory / "files"
    root.mkdir(parents=True, exist_ok=True)
    model = Path(network)
    if model.suffix != ".onnx":
        model = directory / f"{network}.onnx"
        zoo = [sys.executable, "-m", "tunefarm", "zoo", network, "--dtype", elements(dtype)]
        subprocess.run([*zoo, "-o", str(model)], check=True)
    target = target_of(arch, dtype)
    program = import_model(ImportRequest(model, root / "program", target))
    said = {"network": model.stem, "dtype": dtype, "arch": arch, "run_limit_s": RUN_LIMIT_S}
    protocol = Protocol(run_limit_s=RUN_LIMIT_S)
    made: list[Made] = []
    builder = Builder(COMPILE_LIMIT_S)
    for task in program.tasks:
        reference = root / f"{task.id}.npz"
        facts = KernelFacts(
            *(task.id, task.args, task.flops, reference, task.constants, program.between_bytes)
        )
        ways = schedules(load_workload(program.workload(task.id)), target, tried)
        for number, (how, trace) in enumerate(ways):
            library = root / f"{task.id}-{number}.so"
            path = program.workload(task.id)
            outcome = builder.build(BuildRequest(path, target, trace, library))
            if outcome.library is None:
                print(f"{task.name}, {how}: {outcome.failure}")
                continue
            request = ScreenRequest(outcome.library, facts, protocol, None, not trace)
            made.append(({"task": task.id, "schedule": how, "trace": trace}, request))
        print(f"{task.name}: {sum(r['task'] == task.id for r, _ in made)} of {len(ways)} built")
    builder.close()
    made = in_passes(made, "task")
    said["rows"] = [row for row, _ in made]
    said["tasks"] = [{"id": t.id, "name": t.name, "weight": t.weight} for t in program.tasks]
    write_atomically(directory / "plan.json", (json.dumps(said, indent=1) + "\n").encode())
    Plan(directory).write(NETWORKS_KERNELS, [request for _, request in made])


def chosen(plan: Plan, report: Report) -> dict[str, tuple[float, float, dict[str, Any]]]:
    """By kernel whose untuned schedule ran: its seconds, those of the fastest that is right, and
    which that is."""
    times: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for place, row in enumerate(plan.rows):
        if (seconds := seconds_of(report.answers.get(place))) is not None:
            times.setdefault(row["task"], []).append((seconds, row))
    found = {}
    for task, of in times.items():
        untuned = [seconds for seconds, row in of if row["trace"] == UNTUNED]
        if untuned:
            found[task] = (untuned[0], *min(of, key=lambda one: one[0]))
    return found


def choose(plan: Plan, out: Path) -> None:
    report = report_on(plan.directory, NETWORKS_KERNELS, out)
    if report is None:
        raise SystemExit(f"there is no report on {plan.directory / NETWORKS_KERNELS}")
    program, target, best = plan.program, plan.target, chosen(plan, report)
    base, tuned = (plan.root / f"{name}.so" for name in ("base", "tuned"))
    # The same graph, so that its weights, which are most of the bundle, are the same file.
    assemble(AssembleRequest(program.module, (), (), target, base))
    functions = [
        (function, task.id)
        for task in program.tasks
        for function in task.functions
        if task.id in best and best[task.id][2]["trace"] != UNTUNED
    ]
    assemble(
        AssembleRequest(
            program.module,
            tuple((function, program.workload(task)) for function, task in functions),
            tuple((function, best[task][2]["trace"]) for function, task in functions),
            target,
            tuned,
        )
    )
    expected = make_expected(
        ExpectedRequest(
            *(program.model, program.inputs, 2, plan.protocol.seeds),
            *(plan.root / "expected.npz", program.precision),
        )
    )
    check = CheckRequest((tuned, base), (tuned,), expected, program.inputs, plan.protocol)
    models = [
        ModelRequest(base, tuned, program.inputs, plan.protocol, process)
        for process in range(plan.protocol.model_processes)
    ]
    plan.write(NETWORK, [check, *models])


if __name__ == "__main__":
    main()
