"""A target that no device serves, built all the same: its schedules are chosen by the hardware and
cost models alone. Nobody has measured it, and it says so: the verdict is UNMEASURED. What a model
for a GPU computes is seen on a GPU of paper, as far as there is time for it."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from tunefarm.devices import cpu
from tunefarm.devices.gpu import arch_of
from tunefarm.errors import JobFailed, last_line
from tunefarm.frontend.program import Program
from tunefarm.home import Home
from tunefarm.measure.assemble import AssembleRequest
from tunefarm.measure.build import BuildRequest
from tunefarm.measure.cuda.emulator.stand_in import ptx_in
from tunefarm.measure.cuda.on_paper import OnPaper, PaperRequest
from tunefarm.measure.expected import ExpectedRequest
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import CheckRequest
from tunefarm.results.artifact import Packaged, package
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.scheduler import actors, farm
from tunefarm.search.candidate import UNTUNED, Candidate, baseline

_POLL_S = 0.5
_BUDGET_S = 600.0
_LEAST_S = 5.0
"""Of time that a GPU of paper is begun with."""
ORIGIN = "hardware model"
_CHOICES = 4
"""Schedules of a kernel that are built at the most, until one does without memory for registers."""


@dataclass(frozen=True)
class UnmeasuredRun:
    """Args:
    transfer: the cost model to choose by, besides the hardware's.
    budget_s: what this may take, if that was said; the model is run on paper for as long as is left
        of it.
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
    budget_s: float | None
    check: Callable[[], None]
    say: Callable[[str], None]

    def run(self) -> Packaged:
        """The artifact.

        Raises:
            JobFailed: the whole model cannot be compiled; or it computes something else on a GPU of
                paper, and does so untuned.
        """
        started = time.monotonic()
        job, name = self.job.id, self.target.name
        self.journal.add_tasks(job, name, self.program.tasks)
        here = farm.this_node()  # its files are
        builders = [
            actors.spawn(actors.BuildWorker, None, self.protocol.compile_limit_s, node=here)
            for _ in range(max(1, min(cpu.usable_cores(), len(self.program.tasks))))
        ]
        search = actors.spawn(actors.SearchWorker, self._plan(), cpus=0, node=here)
        try:
            traces = first_that_fit(self._chosen(search), lambda due: self._reports(builders, due))
            tuned = sum(trace != UNTUNED for trace in traces.values())
            self.say(f"{tuned} of {len(traces)} kernels have a schedule that a model chose")
            library = self._assembled(builders[0], traces)
            seen = self._on_paper(builders[0], library, started)
            why = ""
            if seen.is_wrong:
                why = f"the tuned model computes something else than the model ({_said(seen)})"
                traces = dict.fromkeys(traces, UNTUNED)
                library = self._assembled(builders[0], traces)
                seen = self._untuned_on_paper(builders[0], library, started)
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
            parity=seen.parity,
            conditions=cpu.conditions(),
            protocol=self.protocol.to_dict(),
            wall_s=time.monotonic() - started,
            why_untuned=why,
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

    def _chosen(self, search: Any) -> dict[str, tuple[str, ...]]:
        """By kernel, the traces that are expected to be best, or the untuned one."""
        return {
            task.id: self._wait(search.likeliest.remote(task.id, _CHOICES)) or (UNTUNED,)
            for task in self.program.tasks
        }

    def _reports(
        self, builders: list[Any], due: list[tuple[str, str]]
    ) -> Iterator[tuple[str, str, int]]:
        """Build these; of those that compile, the bytes that their threads spill."""
        asked = []
        for worker, (task, trace) in zip(itertools.cycle(builders), due, strict=False):
            candidate = self._candidate(task, trace)
            library = self.directory / "candidates" / f"{candidate.id}.so"
            request = BuildRequest(
                self.program.workload(task), self.target.resolved, trace, library
            )
            asked.append((task, candidate, worker.build.remote(request)))
        job, name = self.job.id, self.target.name
        for task, candidate, reference in asked:
            outcome = self._wait(reference).answer
            self.journal.add_candidates(job, name, [candidate])
            if outcome.failure is not None:
                self.journal.add_failure(job, name, candidate.id, outcome.failure)
                continue
            resources = outcome.library.resources
            self.journal.add_resources(job, name, candidate.id, resources)
            yield task, candidate.trace, sum(one.spill_bytes for one in resources)

    def _candidate(self, task: str, trace: str) -> Candidate:
        text, toolchain = self.target.resolved.text, self.target.toolchain
        if trace == UNTUNED:
            return baseline(task, text, toolchain)
        return Candidate(task, text, toolchain, trace, ORIGIN)

    def _assembled(self, builder: Any, traces: dict[str, str]) -> Path:
        library = self.directory / "model" / "tuned.so"
        on_gpu = self.target.resolved.kind == "cuda"
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
            ptx_in(self.home.paper) if on_gpu else None,
        )
        self._wait(builder.assemble.remote(request))
        return library

    def _on_paper(self, builder: Any, library: Path, started: float) -> OnPaper:
        """What `library` computes on a GPU of paper; of another device's nothing is known."""
        if self.target.resolved.kind != "cuda":
            return OnPaper(untold="it is for no GPU")
        seen = self._seen(builder, library, started)
        self.say(_said(seen))
        self.journal.add_event(
            self.job.id, "on_paper", target=self.target.name, **dataclasses.asdict(seen)
        )
        return seen

    def _seen(self, builder: Any, library: Path, started: float) -> OnPaper:
        until = started + (_BUDGET_S if self.budget_s is None else self.budget_s)
        if until - time.monotonic() < _LEAST_S:
            return OnPaper(untold="no time is left of the budget")
        try:
            check = CheckRequest(
                (library,), (), self._expected(builder), self.program.inputs, self.protocol
            )
        except JobFailed as error:
            return OnPaper(untold=error.message)
        left_s = max(_LEAST_S, until - time.monotonic())
        self.say(f"running it on a GPU of paper, for {left_s:.0f} s at most")
        arch = arch_of(self.target.resolved).name
        request = PaperRequest(check, arch, self.home.paper, left_s)
        found: OnPaper = self._wait(builder.on_paper.remote(request))
        return found

    def _untuned_on_paper(self, builder: Any, library: Path, started: float) -> OnPaper:
        """In the place of what was wrong.

        Raises:
            JobFailed: it is not known to be right either.
        """
        self.say("that must not ship: the untuned build instead")
        seen = self._on_paper(builder, library, started)
        if seen.parity is None or not seen.parity.passed:
            raise JobFailed(
                f"{self.target.name}: the model with the chosen schedules is wrong on a GPU of "
                f"paper, and of the untuned build {_said(seen)}; nothing is packaged",
                hint="A longer --budget gives it more time. Which kernel it is says a job for such "
                "a GPU: python -m tunefarm.measure.cuda.emulator --arch ARCH tunefarm submit MODEL "
                "--targets cuda",
            )
        return seen

    def _expected(self, builder: Any) -> Path:
        """What the model is to compute; made once.

        Raises:
            JobFailed: ONNX Runtime cannot tell.
        """
        file = self.directory / "model" / "expected.npz"
        if not file.exists():
            request = ExpectedRequest(
                *(self.program.model, self.program.inputs, cpu.usable_cores()),
                *(self.protocol.seeds, file, self.program.precision),
            )
            self._wait(builder.assemble.remote(request))
        return file

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


def _said(seen: OnPaper) -> str:
    if seen.parity is None:
        return f"on a GPU of paper: {seen.fault or f'not known, {seen.untold}'}"
    error = f"largest relative error {seen.parity.max_rel_err:.1e} against ONNX Runtime"
    return f"on a GPU of paper: {error}{'' if seen.parity.passed else ', too much'}"


def first_that_fit(
    chosen: Mapping[str, Sequence[str]],
    reports: Callable[[list[tuple[str, str]]], Iterable[tuple[str, str, int]]],
) -> dict[str, str]:
    """Of each kernel's traces, likeliest first, the first that compiles and for which the registers
    suffice; where there is none, the one that spills least; `UNTUNED` where none compiles.

    Args:
        reports: compiles traces, (kernel, trace) each, and says of those that could be how many
            bytes their threads spill.
    """
    spilt: dict[str, dict[str, int]] = {task: {} for task in chosen}
    for number in range(max(map(len, chosen.values()), default=0)):
        due = [
            (task, traces[number])
            for task, traces in chosen.items()
            if number < len(traces) and 0 not in spilt[task].values()
        ]
        for task, trace, spill_bytes in reports(due) if due else ():
            spilt[task][trace] = spill_bytes
    return {t: min(of, key=lambda trace: of[trace], default=UNTUNED) for t, of in spilt.items()}
