"""Which layout a network is computed in, where the import cannot tell: both are measured.

Every kernel of either program takes the schedule that its hardware model likes best, both models
are compiled, and run in turns: what is compared is the whole, transposes and all. A search of both
would tell them apart better and take twice as long.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from tunefarm.errors import TunefarmError, last_line
from tunefarm.frontend.program import Program
from tunefarm.measure.assemble import AssembleRequest
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.runner import ModelRequest
from tunefarm.results.journal import Job, JobTarget, Journal
from tunefarm.scheduler import actors

EVENT = "layout"


@dataclass(frozen=True)
class LayoutTrial:
    """Args:
    directory: of the target within its job.
    gauge: see `measure.runner.Runner`.
    """

    journal: Journal
    job: Job
    target: JobTarget
    protocol: Protocol
    directory: Path
    gauge: Path

    def decided(self) -> str | None:
        """The layout that this job chose earlier."""
        for event in self.journal.events(self.job.id):
            if event["kind"] == EVENT and event["detail"]["target"] == self.target.name:
                return str(event["detail"]["layout"])
        return None

    def decide(self, programs: tuple[Program, Program]) -> str:
        """The faster one's layout, on record; the first one's where they cannot be compared."""
        layouts = [str(program.evidence["layout"]) for program in programs]
        detail: dict[str, Any] = {}
        try:
            seconds = self._seconds(programs)
        except (TunefarmError, ray.exceptions.RayError) as error:
            chosen, detail["why"] = layouts[0], last_line(error)
        else:
            chosen = layouts[seconds.index(min(seconds))]
            detail["ms"] = {layout: one * 1e3 for layout, one in zip(layouts, seconds, strict=True)}
        self.journal.add_event(self.job.id, EVENT, target=self.target.name, layout=chosen, **detail)
        return chosen

    def _seconds(self, programs: tuple[Program, Program]) -> list[float]:
        """Of an inference in either: the median of the processes' medians."""
        workers = [actors.spawn(actors.SearchWorker, self._plan(one)) for one in programs]
        builders = [
            actors.spawn(actors.BuildWorker, self.protocol.compile_limit_s) for _ in programs
        ]
        device = actors.spawn(
            actors.MeasureWorker,
            self.target.device.cores,
            self.protocol,
            self.gauge,
            cpus=0,
            device=self.target.device.id,
        )
        try:
            asked = [
                [worker.propose.remote(task.id, 1, (), ()) for task in program.tasks]
                for worker, program in zip(workers, programs, strict=True)
            ]
            requests = [
                self._request(program, ray.get(answers))
                for program, answers in zip(programs, asked, strict=True)
            ]
            ray.get([b.assemble.remote(r) for b, r in zip(builders, requests, strict=True)])
            base, tuned = (request.library for request in requests)
            runs = [
                ray.get(
                    device.model.remote(
                        ModelRequest(base, tuned, programs[0].inputs, self.protocol, process)
                    )
                )
                for process in range(self.protocol.place_processes)
            ]
        finally:
            for actor in (*workers, *builders, device):
                ray.kill(actor)
            for file in (self.directory / "model").glob("layout-*"):
                file.unlink()
        return [
            statistics.median(statistics.median(run[name]) for run in runs)
            for name in ("base", "tuned")
        ]

    def _plan(self, program: Program) -> actors.SearchPlan:
        options = self.job.options
        return actors.SearchPlan(
            program.directory,
            self.target.resolved,
            self.target.toolchain,
            options["strategy"],
            options["seed"],
        )

    def _request(self, program: Program, answers: list[Any]) -> AssembleRequest:
        """The model with the first candidate of each kernel that has one."""
        chosen = [
            (function, task, candidates[0].trace)
            for task, candidates in zip(program.tasks, answers, strict=True)
            for function in task.functions
            if candidates
        ]
        layout = program.evidence["layout"]
        return AssembleRequest(
            program.module,
            tuple((function, program.workload(task.id)) for function, task, _ in chosen),
            tuple((function, trace) for function, _, trace in chosen),
            self.target.resolved,
            self.directory / "model" / f"layout-{layout}.so",
        )
