"""One tuner on one kernel or a whole network, in a process of its own: what it found, and when.

    python benchmarks/tuners.py TUNER PROGRAM TASK|all --trials 64 --seed 0 --since UNIX_TIME

TUNER is `tunefarm`, `metaschedule` (TVM's own, as it comes) or `metaschedule-warm` (the same space,
search and cost model with tunefarm's builders and runner: no process starts and no slow import).
Prints one JSON document: for each result its seconds since `--since`, its latency in seconds (null
for a failure), its trace, and its kernel's task.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kernels import between_bytes

from tunefarm.devices.cpu import usable_cores
from tunefarm.devices.device import Device
from tunefarm.frontend.program import Program, load_program
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import ScreenRequest
from tunefarm.measure.runner import Runner

BATCH = {"metaschedule": 64, "metaschedule-warm": 32}
"""Candidates of a round: MetaSchedule's own default, for every round starts its processes anew;
half of that where nothing starts, so that its cost model is used."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tuner", choices=["tunefarm", "metaschedule", "metaschedule-warm"])
    parser.add_argument("program", type=Path)
    parser.add_argument("task")
    parser.add_argument("--device", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gauge", type=Path, help="see tunefarm.measure.steady")
    parser.add_argument("--since", type=float, default=time.time())
    a = parser.parse_args()
    from tunefarm.devices.device import device_from_dict

    device = device_from_dict(json.loads(a.device.read_text()))
    run = {"tunefarm": own, "metaschedule": reference, "metaschedule-warm": warm_reference}[a.tuner]
    program = load_program(a.program)
    tasks = [one.id for one in program.tasks] if a.task == "all" else [a.task]
    results = run(program, tasks, device, a.trials, a.seed, a.gauge)
    print(
        json.dumps(
            {
                "results": [[at - a.since, *rest] for at, *rest in results],
                "wall_s": time.time() - a.since,
            }
        )
    )


Results = list[tuple[float, float | None, str, str]]


def own(
    program: Program, tasks: list[str], device: Device, trials: int, seed: int, gauge: Path | None
) -> Results:
    from tunefarm.scheduler.local import LocalTuner, Trial
    from tunefarm.scheduler.state import Limits

    found: Results = []

    def note(trial: Trial) -> None:
        if not trial.candidate.untuned:
            found.append((time.time(), trial.latency_s, trial.candidate.trace, trial.task))

    with tempfile.TemporaryDirectory() as directory:
        LocalTuner(
            {task: (program.task(task), program.workload(task)) for task in tasks},
            device,
            "benchmark",
            Path(directory),
            # It stops only at the last trial, as the reference does.
            Limits(trials=trials, builders=device.cores, patience=10**6),
            seed=seed,
            between=between_bytes(program),
            gauge=gauge,
            report=note,
        ).run()
    return found


def _plain_trace(trace: Any) -> str:
    """A trace of TVM's, up to its post-processing: that is done again when it is built."""
    from tunefarm.search import replay

    instructions, decisions = replay.plain(trace.as_json())
    names = [instruction[0] for instruction in instructions]
    end = names.index("EnterPostproc") if "EnterPostproc" in names else len(names)
    kept = [decision for decision in decisions if decision[0] < end]
    return json.dumps([instructions[:end], kept], separators=(",", ":"))


def reference(
    program: Program, tasks: list[str], device: Device, trials: int, seed: int, _gauge: Path | None
) -> Results:
    import tvm
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    found: Results = []

    @derived_object
    class Note(ms.measure_callback.PyMeasureCallback):
        """When a batch's results are there."""

        def apply(
            self, scheduler: Any, task_id: Any, candidates: Any, built: Any, ran: Any
        ) -> None:
            now = time.time()
            for candidate, result in zip(candidates, ran, strict=True):
                seconds = [float(s) for s in result.run_secs or []]
                latency = sorted(seconds)[len(seconds) // 2] if seconds else None
                found.append((now, latency, _plain_trace(candidate.sch.trace), tasks[task_id]))

    contexts = [
        ms.TuneContext(
            tvm.ir.load_json(program.workload(task).read_text()),
            target=tvm.target.Target(device.target.tvm),
            space_generator="post-order-apply",
            search_strategy="evolutionary",
            task_name=task,
            num_threads=usable_cores(),
            rand_state=1 + seed * len(tasks) + number,
        )
        for number, task in enumerate(tasks)
    ]
    # Its own batch, or as much as gives every kernel of a network one.
    batch = min(BATCH["metaschedule"], max(1, trials // len(tasks)))
    with tempfile.TemporaryDirectory() as directory:
        ms.tune.tune_tasks(
            tasks=contexts,
            task_weights=[program.task(task).weight for task in tasks],
            work_dir=directory,
            max_trials_global=trials,
            num_trials_per_iter=batch,
            measure_callbacks=[
                Note(),
                ms.measure_callback.AddToDatabase(),
                ms.measure_callback.UpdateCostModel(),
            ],
        )
    return found


def warm_reference(
    program: Program, tasks: list[str], device: Device, trials: int, seed: int, gauge: Path | None
) -> Results:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from tunefarm.search.kernels.intrinsics import register_intrinsics

    register_intrinsics("llvm")
    found: Results = []
    (task,) = tasks
    workload = tvm.ir.load_json(program.workload(task).read_text())
    context = ms.TuneContext(
        workload,
        target=tvm.target.Target(device.target.tvm),
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        num_threads=usable_cores(),
        rand_state=seed + 1,
    )
    model = ms.cost_model.XGBModel(num_tuning_cores=usable_cores())
    database = ms.database.MemoryDatabase()
    entry = database.commit_workload(workload)
    context.pre_tuning(
        trials, BATCH["metaschedule-warm"], context.generate_design_space(), database, model
    )
    one, protocol = program.task(task), Protocol()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(device.cores) as pool:
        directory = Path(name)
        builders = [Builder(protocol.compile_limit_s) for _ in range(device.cores)]
        runner = Runner(device.cores, protocol.memory_bytes, gauge)
        facts = KernelFacts(one.id, one.args, one.flops, directory / "reference.npz")

        def build(index: int, trace: str, library: Path) -> Any:
            request = BuildRequest(program.workload(task), device.target, trace, library)
            return builders[index % len(builders)].build(request)

        untuned = build(0, "", directory / "untuned.so").library
        runner.screen(ScreenRequest(untuned, facts, protocol, None, make_reference=True))
        incumbent: float | None = None
        while candidates := context.generate_measure_candidates():
            traces = [_plain_trace(c.sch.trace) for c in candidates]
            libraries = [directory / f"{len(found) + i}.so" for i in range(len(traces))]
            jobs = list(zip(range(len(traces)), traces, libraries, strict=True))
            built: dict[int, Any] = {}

            def share(worker: int, jobs: Any = jobs, built: Any = built) -> None:
                for index, trace, library in jobs[worker :: len(builders)]:
                    built[index] = build(worker, trace, library)

            list(pool.map(share, range(len(builders))))
            results = []
            for index, trace in enumerate(traces):
                latency = None
                if built[index].library is not None:
                    request = ScreenRequest(built[index].library, facts, protocol, incumbent)
                    screening = runner.screen(request).screening
                    if screening is not None:
                        latency = sorted(screening.samples)[len(screening.samples) // 2]
                        incumbent = min(incumbent or latency, latency)
                found.append((time.time(), latency, trace, task))
                seconds = [latency] if latency else None
                results.append(ms.runner.RunnerResult(seconds, None if latency else "failed"))
                if latency:
                    record = ms.database.TuningRecord(
                        candidates[index].sch.trace,
                        entry,
                        [latency],
                        context.target,
                        candidates[index].args_info,
                    )
                    database.commit_tuning_record(record)
            context.notify_runner_results(candidates, results)
            model.update(context, candidates, results)
        context.post_tuning()
        for worker in builders:
            worker.close()
        runner.close()
    return found


if __name__ == "__main__":
    main()
