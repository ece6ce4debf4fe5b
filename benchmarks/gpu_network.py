"""A whole network on a GPU that no network leads to, in two journeys of one bundle each.

    python benchmarks/gpu_network.py build DIR resnet50 [--dtype float16] [--arch sm_90]
    python DIR/kernels.bundle                                       (where the GPU is)
    python benchmarks/gpu_network.py choose DIR
    python DIR/network.bundle                                       (where the GPU is)
    python benchmarks/gpu_network.py table DIR [--rivals rivals.json]

First every kernel's likeliest schedules are measured, with arguments as cold as in the network;
then the network of the fastest right ones beside the same graph untuned, in processes of its own,
and what it computes is held against ONNX Runtime. (A job does the same by `submit
--measure-by-bundle` and decides by races and finals, in more journeys.) `--rivals` is the file of
`gpu_rivals.py`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from crossbuild import COMPILE_LIMIT_S, elements, schedules, target_of

from tunefarm.frontend.importer import ImportRequest, import_model
from tunefarm.frontend.program import Program, load_program
from tunefarm.home import write_atomically
from tunefarm.measure.assemble import AssembleRequest, assemble
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.bundle import Report, read_report, report_of, write_bundle
from tunefarm.measure.expected import ExpectedRequest, make_expected
from tunefarm.measure.facts import Checked, KernelFacts
from tunefarm.measure.files import needs
from tunefarm.measure.judge import judge
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.runner import CheckRequest, ModelRequest, ScreenOutcome, ScreenRequest
from tunefarm.measure.runtime_files import runtime_files
from tunefarm.scheduler.exchange import WHEELS
from tunefarm.search.candidate import UNTUNED
from tunefarm.search.replay import load_workload

KERNELS, NETWORK = "kernels.bundle", "network.bundle"


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
    showing = commands.add_parser("table")
    showing.add_argument("directory", type=Path)
    showing.add_argument("--rivals", type=Path)
    a = parser.parse_args()
    if a.command == "build":
        build(a.directory, a.network, a.dtype, a.arch, a.tried)
    elif a.command == "choose":
        choose(Plan(a.directory))
    else:
        print(table(Plan(a.directory), a.rivals))


class Plan:
    """What one call leaves to the next, in its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.root = directory, directory / "files"
        said = json.loads((directory / "plan.json").read_text())
        self.network, self.dtype = said["network"], said["dtype"]
        self.target = target_of(said["arch"], said["dtype"])
        self.protocol = Protocol(run_limit_s=said["run_limit_s"], model_processes=5)
        self.rows: list[dict[str, Any]] = said["rows"]

    @property
    def program(self) -> Program:
        return load_program(self.root / "program")

    def report(self, bundle: str) -> Report:
        return read_report(report_of(self.directory / bundle), self.root)

    def write(self, name: str, requests: list[Any]) -> None:
        files = [file for one in requests for file in needs(one) if file.exists()]
        runtime = runtime_files(self.directory / WHEELS, for_gpu=True)
        path = self.directory / name
        write_bundle(path, "network", self.target, "", requests, self.root, files, runtime)
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
    rows: list[dict[str, Any]] = []
    said = {"network": model.stem, "dtype": dtype, "arch": arch, "rows": rows, "run_limit_s": 60.0}
    protocol = Protocol(run_limit_s=60.0)
    requests, builder = [], Builder(COMPILE_LIMIT_S)
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
            requests.append(ScreenRequest(outcome.library, facts, protocol, None, not trace))
            rows.append({"task": task.id, "how": how, "trace": trace})
        print(f"{task.name}: {sum(row['task'] == task.id for row in rows)} of {len(ways)} built")
    builder.close()
    write_atomically(directory / "plan.json", (json.dumps(said, indent=1) + "\n").encode())
    Plan(directory).write(KERNELS, requests)


def chosen(plan: Plan) -> dict[str, tuple[float, float, dict[str, Any]]]:
    """By kernel whose untuned schedule ran: its seconds, those of the fastest that is right, and
    which that is."""
    answers = plan.report(KERNELS).answers
    times: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for place, row in enumerate(plan.rows):
        answer = answers.get(place)
        if isinstance(answer, ScreenOutcome) and answer.screening is not None:
            seconds = statistics.median(answer.screening.samples)
            times.setdefault(row["task"], []).append((seconds, row))
    found = {}
    for task, of in times.items():
        untuned = [seconds for seconds, row in of if row["trace"] == UNTUNED]
        if untuned:
            found[task] = (untuned[0], *min(of, key=lambda one: one[0]))
    return found


def choose(plan: Plan) -> None:
    program, target, best = plan.program, plan.target, chosen(plan)
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


def table(plan: Plan, rivals: Path | None) -> str:
    report, best = plan.report(NETWORK), chosen(plan)
    paper = ", whose times are no evidence" if report.device.is_emulated else ""
    lines = [f"{report.device.sku}{paper}: {plan.network} {plan.dtype}\n"]
    lines += ["| kernel | times | untuned us | tuned us | by |", "|---|---|---|---|---|"]
    for task in plan.program.tasks:
        if task.id in best:
            before, after, row = best[task.id]
            times = f"{before * 1e6:.1f} | {after * 1e6:.1f}"
            lines.append(f"| {task.name} | {task.weight} | {times} | {row['how']} |")
    checked, *models = (report.answers[n] for n in sorted(report.answers))
    if not isinstance(checked, Checked):
        return "\n".join([*lines, f"\nthe whole network did not run: {checked}"])
    base, tuned = (
        {process: answer[name] for process, answer in enumerate(models)}
        for name in ("base", "tuned")
    )
    found = judge(base, tuned, len(models), plan.protocol)
    assert found is not None
    lines.append(
        f"\nuntuned {found.base_s * 1e3:.3f} ms, tuned {found.tuned_s * 1e3:.3f} ms: "
        f"{found.speedup:.2f} times faster ({found.low:.2f} to {found.high:.2f}), {found.verdict}; "
        f"largest error against ONNX Runtime {checked.parity.max_abs_err:.2g}"
        + ("" if checked.parity.passed else ", WHICH IS TOO MUCH")
    )
    name = f"network {plan.network} {plan.dtype}"
    theirs = json.loads(rivals.read_text())["kernels"].get(name, {}) if rivals else {}
    lines += [f"{rival}: {s / found.tuned_s:.2f} times our time" for rival, s in theirs.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
