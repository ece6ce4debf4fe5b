"""A target that no device serves, built all the same: its schedules are chosen by the hardware and
cost models alone. Nobody has run it, and it says so: the verdict is UNMEASURED."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from tunefarm.devices import cpu
from tunefarm.errors import JobFailed, last_line
from tunefarm.frontend.program import Program
from tunefarm.home import Home
from tunefarm.measure.assemble import AssembleRequest
from tunefarm.measure.build import BuildRequest
from tunefarm.measure.protocol import Protocol
from tunefarm.results.artifact import Packaged, package
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.scheduler import actors, farm
from tunefarm.search.candidate import UNTUNED, Candidate, baseline

_POLL_S = 0.5
ORIGIN = "hardware model"


@dataclass(frozen=True)
class UnmeasuredRun:
    """Args:
    transfer: the cost model to choose by, besides the hardware's.
    check: called while waiting; raises to end the job.
    say: tells people.
    """

    home: Home
    journal: Journal
    job: Job
    target: JobTarget
    program: Program
    protocol: Protocol
    directory: Path
    transfer: Path | None
    check: Callable[[], None]
    say: Callable[[str], None]

    def run(self) -> Packaged:
        """The artifact.

        Raises:
            JobFailed: the whole model cannot be compiled.
        """
        started = time.monotonic()
        job, name = self.job.id, self.target.name
        self.journal.add_tasks(job, name, self.program.tasks)
        here = farm.this_node()  # its files are
        builders = [
            actors.spawn(actors.BuildWorker, None, self.protocol.compile_limit_s, node=here)
            for _ in range(min(cpu.usable_cores(), len(self.program.tasks)))
        ]
        search = actors.spawn(actors.SearchWorker, self._plan(), node=here)
        try:
            traces = self._built(builders, self._chosen(search))
            tuned = sum(trace != UNTUNED for trace in traces.values())
            self.say(f"{tuned} of {len(traces)} kernels have a schedule that a model chose")
            library = self._assembled(builders[0], traces)
        finally:
            for worker in (search, *builders):
                ray.kill(worker)
        packaged = package(
            self.home,
            self.journal,
            self.job,
            self.target,
            self.program,
            library,
            traces={task: trace for task, trace in traces.items() if trace != UNTUNED},
            comparison=None,
            parity=None,
            conditions=cpu.conditions(),
            protocol=self.protocol.to_dict(),
            wall_s=time.monotonic() - started,
        )
        self.journal.add_artifact(
            job, name, self.job.name, packaged.digest, packaged.path, packaged.summary
        )
        return packaged

    def _plan(self) -> actors.SearchPlan:
        return actors.SearchPlan(
            self.program.directory,
            self.target.resolved,
            self.target.toolchain,
            self.job.options["strategy"],
            self.job.options["seed"],
            self.transfer,
        )

    def _chosen(self, search: Any) -> Iterator[tuple[str, str]]:
        """Kernel by kernel, the trace that is expected to be best, or the untuned one."""
        for task in self.program.tasks:
            yield task.id, self._wait(search.likeliest.remote(task.id)) or UNTUNED

    def _built(self, builders: list[Any], chosen: Iterator[tuple[str, str]]) -> dict[str, str]:
        """Those that compile; a kernel whose schedule does not stays untuned."""
        asked = {}
        for worker, (task, trace) in zip(itertools.cycle(builders), chosen, strict=False):
            candidate = self._candidate(task, trace)
            library = self.directory / "candidates" / f"{candidate.id}.so"
            request = BuildRequest(
                self.program.workload(task), self.target.resolved, trace, library
            )
            asked[task] = (candidate, worker.build.remote(request))
        traces = {}
        for task, (candidate, reference) in asked.items():
            outcome = self._wait(reference).answer
            self.journal.add_candidates(self.job.id, self.target.name, [candidate])
            traces[task] = candidate.trace
            if outcome.failure is not None:
                self.journal.add_failure(
                    self.job.id, self.target.name, candidate.id, outcome.failure
                )
                traces[task] = UNTUNED
            else:
                self.journal.add_resources(
                    self.job.id, self.target.name, candidate.id, outcome.library.resources
                )
        return traces

    def _candidate(self, task: str, trace: str) -> Candidate:
        text, toolchain = self.target.resolved.text, self.target.toolchain
        if trace == UNTUNED:
            return baseline(task, text, toolchain)
        return Candidate(task, text, toolchain, trace, ORIGIN)

    def _assembled(self, builder: Any, traces: dict[str, str]) -> Path:
        library = self.directory / "model" / "tuned.so"
        functions = [
            (function, task.id)
            for task in self.program.tasks
            for function in task.functions
            if traces[task.id] != UNTUNED
        ]
        request = AssembleRequest(
            self.program.module,
            tuple((function, self.program.workload(task)) for function, task in functions),
            tuple((function, traces[task]) for function, task in functions),
            self.target.resolved,
            library,
        )
        self._wait(builder.assemble.remote(request))
        return library

    def _wait(self, reference: Any) -> Any:
        while True:
            self.check()
            ready, _ = ray.wait([reference], timeout=_POLL_S)
            if ready:
                try:
                    return ray.get(reference)
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None) or error
                    raise JobFailed(f"{self.target.name}: {last_line(cause)}") from error
