"""Which layout a network is computed in, where the import cannot tell: both are measured.

Every kernel of either program takes the schedule that its hardware model expects most of (one that
no model knows stays untuned), both models are compiled, and run in turns: what is compared is the
whole, transposes and all. A search of both would tell them apart better and take twice as long.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from tunefarm.errors import Cancelled, Interrupted, JobFailed, TunefarmError, last_line
from tunefarm.frontend.program import Program
from tunefarm.measure.assemble import AssembleRequest
from tunefarm.measure.expected import ExpectedRequest
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import CheckRequest, ModelRequest
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.scheduler import actors, farm

EVENT = "layout"
MARGIN = 1.02
"""How many times faster the other layout must be to be taken."""


@dataclass(frozen=True)
class LayoutTrial:
    """Args:
    directory: of the target within its job.
    gauge: see `measure.runner.Runner`.
    check: called while waiting; raises to end the job.
    """

    journal: Journal
    job: Job
    target: JobTarget
    protocol: Protocol
    directory: Path
    gauge: Path
    check: Callable[[], None]

    def decided(self) -> str | None:
        """The layout that this job chose earlier."""
        for event in self.journal.events(self.job.id):
            if event["kind"] == EVENT and event["detail"]["target"] == self.target.name:
                return str(event["detail"]["layout"])
        return None

    def decide(self, program: Program, import_other: Callable[[], Program]) -> tuple[str, str]:
        """The layout, which is on record then, and a line that says why.

        It is that of `program`, unless the other one is faster and computes the same. Whatever
        fails is a reason to stay with `program`, and none to end the job.
        """
        layout = str(program.evidence["layout"])
        detail: dict[str, Any] = {}
        try:
            other = import_other()
            seconds = self._seconds((program, other))
        except (Interrupted, Cancelled):
            raise
        except (TunefarmError, ray.exceptions.RayError) as error:
            detail["why"] = line = f"stays in {layout}: {last_line(error)}"
        else:
            names = (layout, str(other.evidence["layout"]))
            detail["ms"] = {name: s * 1e3 for name, s in zip(names, seconds, strict=True)}
            times = " and ".join(f"{ms:.4g} ms in {name}" for name, ms in detail["ms"].items())
            if seconds[0] > MARGIN * seconds[1]:
                layout = names[1]
            line = f"computed in {layout}: with first schedules {times}"
        finally:
            for file in (self.directory / "model").glob("layout-*"):
                file.unlink(missing_ok=True)
        self.journal.add_event(self.job.id, EVENT, target=self.target.name, layout=layout, **detail)
        return layout, line

    def _seconds(self, programs: tuple[Program, Program]) -> list[float]:
        """Of an inference in either: the median of the processes' medians.

        Raises:
            JobFailed: they cannot be compiled, or the second one computes something else.
        """
        workers = [actors.spawn(actors.SearchWorker, self._plan(one), cpus=0) for one in programs]
        builders = [
            actors.spawn(actors.BuildWorker, None, self.protocol.compile_limit_s) for _ in programs
        ]
        device = actors.spawn(
            actors.MeasureWorker,
            None,
            self.target.device,
            self.protocol,
            self.gauge,
            cpus=0,
            resources={f"{farm.DEVICE}{self.target.device.id}": 1},
        )
        try:
            asked = [
                [worker.likeliest.remote(task.id, 1) for task in program.tasks]
                for worker, program in zip(workers, programs, strict=True)
            ]
            requests = [
                self._request(program, [next(iter(one), None) for one in self._all(likeliest)])
                for program, likeliest in zip(programs, asked, strict=True)
            ]
            expected = self._expected(programs[1])
            made = [b.assemble.remote(r) for b, r in zip(builders, requests, strict=True)]
            self._all([*made, builders[0].assemble.remote(expected)])
            first, second = (request.library for request in requests)
            self._check(programs[1], second, expected.file, device)
            protocol = dataclasses.replace(self.protocol, tail_calls=0)
            runs = [
                self._all(
                    [
                        device.model.remote(
                            ModelRequest(first, second, programs[0].inputs, protocol, process)
                        )
                    ]
                )[0].answer.samples
                for process in range(protocol.place_processes)
            ]
        finally:
            for actor in (*workers, *builders, device):
                ray.kill(actor)
        return [
            statistics.median(statistics.median(run[name]) for run in runs)
            for name in ("base", "tuned")
        ]

    def _all(self, references: Sequence[Any]) -> list[Any]:
        left = list(references)
        while left:
            self.check()
            _, left = ray.wait(left, num_returns=len(left), timeout=0.5)
        return [ray.get(reference) for reference in references]

    def _expected(self, program: Program) -> ExpectedRequest:
        return ExpectedRequest(
            program.model,
            program.inputs,
            self.target.device.cores,
            self.protocol.seeds,
            self.directory / "model" / "layout-expected.npz",
            program.precision,
        )

    def _check(self, program: Program, library: Path, expected: Path, device: Any) -> None:
        request = CheckRequest((library,), (), expected, program.inputs, self.protocol)
        (made,) = self._all([device.check.remote(request)])
        found = made.answer
        if not found.parity.passed:
            raise JobFailed(
                f"in {program.evidence['layout']} the model computes something else "
                f"(largest relative error {found.parity.max_rel_err:.1e})"
            )

    def _plan(self, program: Program) -> actors.SearchPlan:
        options, target = self.job.options, self.target
        return actors.SearchPlan(
            program.directory,
            target.resolved,
            target.toolchain,
            options["strategy"],
            options["seed"],
        )

    def _request(self, program: Program, traces: Sequence[str | None]) -> AssembleRequest:
        chosen = [
            (function, task, trace)
            for task, trace in zip(program.tasks, traces, strict=True)
            for function in task.functions
            if trace is not None
        ]
        layout = program.evidence["layout"]
        return AssembleRequest(
            program.module,
            tuple((function, program.workload(task.id)) for function, task, _ in chosen),
            tuple((function, trace) for function, _, trace in chosen),
            self.target.resolved,
            self.directory / "model" / f"layout-{layout}.so",
        )
