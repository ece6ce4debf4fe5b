"""After tuning: who races, what the evidence says, the whole model, and the artifact."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.devices import cpu
from tunefarm.errors import JobFailed
from tunefarm.frontend.program import Program
from tunefarm.home import Home
from tunefarm.measure.assemble import AssembleRequest
from tunefarm.measure.facts import PART
from tunefarm.measure.gate import Parity
from tunefarm.measure.judge import finalists, judge, race_winner
from tunefarm.measure.parity import ParityRequest, check_parity
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.roofline import roof_path
from tunefarm.measure.runner import InPlaceRequest, ModelRequest, Runner
from tunefarm.measure.stats import Verdict
from tunefarm.process import ChildDied, ChildError, ChildTimeout
from tunefarm.results.artifact import Packaged, package
from tunefarm.results.journal import Job, JobTarget, Journal, Measurement
from tunefarm.scheduler.state import Phase
from tunefarm.search.candidate import Candidate

_STAGE = {Phase.RACE: "race", Phase.FINAL: "final", Phase.COMPARE: "model"}


def process_measurements(phase: Phase, process: int, answer: dict[str, Any]) -> list[Measurement]:
    """What one fresh process of a phase reported, as rows of the journal."""
    if phase is Phase.COMPARE:
        entries = list(answer.items())
    else:
        entries = [pair for samples in answer.values() for pair in samples.items()]
    return [
        Measurement(candidate, _STAGE[phase], process, tuple(samples))
        for candidate, samples in entries
    ]


@dataclass(frozen=True)
class Finals:
    """Reads every decision off the journal, so that a resumed job decides the same.

    Args:
        directory: of the target within its job.
        candidates: every candidate known, by id; the caller adds to it.
    """

    home: Home
    journal: Journal
    job: Job
    target: JobTarget
    program: Program
    protocol: Protocol
    directory: Path
    candidates: dict[str, Candidate]

    def settle(self, protocol: Protocol) -> None:
        """From here on measure by `protocol`: it goes by what tuning found, and stays."""
        calls = protocol.slow_calls
        self.journal.add_event(self.job.id, "finals", target=self.target.name, slow_calls=calls)

    def settled(self) -> Protocol:
        """What `settle` was told first; the job's own before that."""
        for event in self.journal.events(self.job.id):
            if event["kind"] == "finals" and event["detail"]["target"] == self.target.name:
                calls = event["detail"]["slow_calls"]
                return dataclasses.replace(self.protocol, slow_calls=calls)
        return self.protocol

    def race_entries(self, phase: Phase, screened: dict[str, float]) -> dict[str, list[str]]:
        """Who runs, by kernel: in the race its best candidates, in the final their winner and the
        untuned schedule.

        Args:
            screened: median latency in seconds of every sound candidate, baselines included.
        """
        winners = self.race_winners() if phase is Phase.FINAL else {}
        entries = {}
        for task, base in self._baselines().items():
            if phase is Phase.FINAL:
                chosen = [base, winners[task]] if task in winners else []
            else:
                mine = {c: s for c, s in screened.items() if self._proposed_for(c, task)}
                chosen = finalists(mine, self.protocol.race_top)
            if chosen and base in screened:
                entries[task] = chosen
        return entries

    def _baselines(self) -> dict[str, str]:
        """The untuned candidate of each kernel, in the program's order."""
        untuned = {c.task: c.id for c in self.candidates.values() if c.untuned}
        return {task.id: untuned[task.id] for task in self.program.tasks}

    def _proposed_for(self, candidate: str, task: str) -> bool:
        one = self.candidates[candidate]
        return one.task == task and not one.untuned

    def _samples(self, stage: str) -> dict[str, dict[int, tuple[float, ...]]]:
        """By candidate, by process."""
        found: dict[str, dict[int, tuple[float, ...]]] = {}
        for m in self.journal.measurements(self.job.id, self.target.name, (stage,)):
            found.setdefault(m.candidate, {})[m.process] = m.samples
        return found

    def race_winners(self) -> dict[str, str]:
        """By kernel."""
        samples = self._samples("race")
        winners = {}
        for task in self._baselines():
            raced = {c: runs for c, runs in samples.items() if self._proposed_for(c, task)}
            winner = race_winner(raced, self.protocol.race_processes)
            if winner is not None:
                winners[task] = winner
        return winners

    def decide_kernels(self) -> None:
        """A verdict for every kernel, from the held-out run alone."""
        winners, samples = self.race_winners(), self._samples("final")
        screened = self.journal.measurements(self.job.id, self.target.name, ("screen",))
        tried = {self.candidates[m.candidate].task for m in screened}
        near = {self.candidates[m.candidate].task for m in screened if not m.truncated}
        for task, base in self._baselines().items():
            winner = winners.get(task)
            result = None
            if winner is not None:
                result = judge(
                    samples.get(base, {}),
                    samples.get(winner, {}),
                    self.protocol.final_processes,
                    self.protocol,
                )
            # Tried, and none came near enough to the untuned schedule to race against it.
            given_up = task in tried and task not in near
            self.journal.add_verdict(
                self.job.id,
                self.target.name,
                task,
                winner,
                result,
                Verdict.SLOWER if given_up else Verdict.UNMEASURED,
            )

    def tuned_traces(self) -> dict[str, str]:
        """The winning trace of each kernel that is FASTER; the others keep their untuned one."""
        verdicts = self.journal.verdicts(self.job.id, self.target.name)
        return {
            task.id: self.candidates[verdicts[task.id]["winner"]].trace
            for task in self.program.tasks
            if task.id in verdicts and verdicts[task.id]["verdict"] == Verdict.FASTER
        }

    def _libraries(self) -> tuple[Path, Path]:
        """Of the whole model: untuned, tuned."""
        return self.directory / "model" / "base.so", self.directory / "model" / "tuned.so"

    def assemble_requests(self) -> tuple[AssembleRequest, AssembleRequest]:
        """The tuned model, and the plain build that it is compared with."""
        base, tuned = self._libraries()
        traces = self.tuned_traces()
        functions = [(f, t.id) for t in self.program.tasks for f in t.functions if t.id in traces]
        target = self.target.resolved
        return (
            AssembleRequest(
                self.program.module,
                tuple((f, self.program.workload(task)) for f, task in functions),
                tuple((f, traces[task]) for f, task in functions),
                target,
                tuned,
            ),
            AssembleRequest(self.program.baseline, (), (), target, base),
        )

    def model_request(self, process: int) -> ModelRequest:
        base, tuned = self._libraries()
        return ModelRequest(base, tuned, self.program.inputs, self.settled(), process)

    def package_result(self, elapsed_s: float) -> None:
        """Verdict on the whole model, parity, and the artifact.

        Nothing ships that is slower than the untuned build, or computes something else than the
        model: then the untuned build ships.

        Raises:
            JobFailed: the untuned build differs from ONNX Runtime as well.
        """
        name = self.target.name
        samples = self._samples("model")
        result = judge(
            samples.get("base", {}),
            samples.get("tuned", {}),
            self.protocol.model_processes,
            self.protocol,
        )
        self.journal.add_verdict(self.job.id, name, "model", None, result)
        base, tuned = self._libraries()
        ships_tuned = result is not None and result.verdict is not Verdict.SLOWER
        library = tuned if ships_tuned else base
        parity = self._parity(library)
        if ships_tuned and not parity.passed:
            library, ships_tuned = base, False
            parity = self._parity(base)
        if not parity.passed:
            raise JobFailed(
                f"{name}: the compiled model's outputs differ from ONNX Runtime's "
                f"(largest relative error {parity.max_rel_err:.1e}); nothing is packaged",
                hint="The import or the compiler is wrong about this model; please report it.",
            )
        self._note_in_place(library, tuned=ships_tuned)
        packaged = package(
            self.home,
            self.journal,
            self.job,
            self.target,
            self.program,
            library,
            traces=self.tuned_traces() if ships_tuned else None,
            comparison=result,
            parity=parity,
            conditions=cpu.conditions(),
            protocol=self.settled().to_dict(),
            wall_s=elapsed_s,
        )
        self.journal.add_artifact(
            self.job.id, name, self.job.name, packaged.digest, packaged.path, packaged.summary
        )

    def _note_in_place(self, library: Path, tuned: bool) -> None:
        """Where the model's time goes: in which kernel, and outside of them. Of the untuned build,
        whose functions are not the program's, nothing is noted, nor of a very slow model."""
        samples = [s for run in self._samples("model").get("tuned", {}).values() for s in run]
        if not tuned or self.protocol.slow_model(min(samples, default=math.inf)):
            return
        device = self.target.device
        gauge = roof_path(self.home, device)
        runner = Runner(device.cores, self.protocol.memory_bytes, gauge)
        try:
            found = runner.in_place(InPlaceRequest(library, self.program.inputs, self.settled()))
        except (ChildTimeout, ChildDied, ChildError, OSError):
            return  # the model ran before: no reason to lose the job
        finally:
            runner.close()
        owner = {f: task.id for task in self.program.tasks for f in task.functions}
        kernels: dict[str, float] = {}
        for function, seconds in found.functions.items():
            task = owner.get(function.partition(PART)[0].removesuffix("_prepacked"))
            if task is not None:
                kernels[task] = kernels.get(task, 0.0) + seconds
        self.journal.add_event(
            self.job.id,
            "in_place",
            target=self.target.name,
            model_s=found.model_s,
            kernels=kernels,
        )

    def _parity(self, library: Path) -> Parity:
        return check_parity(
            ParityRequest(
                self.program.model,
                library,
                self.program.inputs,
                self.target.device.cores,
                self.protocol.seeds,
            )
        )

    def packaged(self) -> Packaged:
        """The artifact on record."""
        rows = self.journal.artifacts(self.job.id)
        row = next(r for r in rows if r["target"] == self.target.name)
        return Packaged(Path(row["path"]), row["digest"], row["summary"])
