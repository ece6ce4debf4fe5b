"""After tuning: who races, inside the model too, and what the evidence says of each kernel."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tunefarm.frontend.program import Program, TuningTask
from tunefarm.measure.facts import PART
from tunefarm.measure.judge import (
    Samples,
    faster_in_all,
    finalists,
    judge,
    may_be_spared,
    race_order,
)
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.stats import Verdict
from tunefarm.results.facts import Job, JobTarget, Measurement
from tunefarm.results.journal import Journal
from tunefarm.scheduler.messages import Phase
from tunefarm.scheduler.plausible import check_placed
from tunefarm.search.candidate import Candidate

_STAGE = {
    Phase.RACE: "race",
    Phase.PLACE: "place",
    Phase.FINAL: "final",
    Phase.COMPARE: "model",
}


def process_measurements(
    phase: Phase, process: int, unit: str, answer: dict[str, Any]
) -> list[Measurement]:
    """What one fresh process of a phase reported, as rows of the journal."""
    if phase is Phase.COMPARE:
        entries = list(answer.items())
    else:
        entries = [pair for samples in answer.values() for pair in samples.items()]
    return [
        Measurement(candidate, _STAGE[phase], process, tuple(samples), unit=unit)
        for candidate, samples in entries
    ]


def kernel_of(function: str) -> str:
    """The program's name of a library's function: it may write a part of a whole, and may take
    packed weights."""
    return function.partition(PART)[0].removesuffix("_prepacked")


def _of_task(task: TuningTask, functions: dict[str, list[float]]) -> list[float]:
    """Seconds per call of a kernel in each watched inference, of those of its functions."""
    runs = [samples for name, samples in functions.items() if kernel_of(name) in task.functions]
    return [sum(one) / task.weight for one in zip(*runs, strict=True)] if runs else []


@dataclass(frozen=True)
class Races:
    """Reads every decision off the journal, so that a resumed job decides the same.

    Args:
        candidates: every candidate known, by id; the caller adds to it.
    """

    journal: Journal
    job: Job
    target: JobTarget
    program: Program
    protocol: Protocol
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

    def entries(self, phase: Phase, screened: dict[str, float]) -> dict[str, list[str]]:
        """Who runs, by kernel: in the race its best candidates, in the final their winner and the
        untuned schedule, unless that one is slow and its verdict clear.

        Args:
            screened: median latency in seconds of every sound candidate, baselines included.
        """
        final = phase is Phase.FINAL
        winners, samples = (self.winners(), self.samples("final")) if final else ({}, {})
        entries = {}
        for task, base in self._baselines().items():
            if task in winners:
                chosen = self._finalists(base, winners[task], samples)
            elif final:
                chosen = []
            else:
                mine = {c: s for c, s in screened.items() if self._proposed_for(c, task)}
                chosen = finalists(mine, self.protocol.race_top)
            if chosen and base in screened:
                entries[task] = chosen
        return entries

    def _finalists(self, base: str, winner: str, samples: Samples) -> list[str]:
        protocol = self.protocol
        spared = may_be_spared(
            samples.get(base, {}), samples.get(winner, {}), protocol.screen_s, protocol
        )
        return [winner] if spared else [base, winner]

    def _baselines(self) -> dict[str, str]:
        """The untuned candidate of each kernel, in the program's order."""
        untuned = {c.task: c.id for c in self.candidates.values() if c.untuned}
        return {task.id: untuned[task.id] for task in self.program.tasks}

    def _proposed_for(self, candidate: str, task: str) -> bool:
        one = self.candidates[candidate]
        return one.task == task and not one.untuned

    def samples(self, stage: str) -> dict[str, dict[int, tuple[float, ...]]]:
        """By candidate, by process."""
        found: dict[str, dict[int, tuple[float, ...]]] = {}
        for m in self.journal.measurements(self.job.id, self.target.name, (stage,)):
            if stage != "model" and m.candidate not in self.candidates:
                continue  # its record is lost
            found.setdefault(m.candidate, {})[m.process] = m.samples
        return found

    def _raced(self) -> dict[str, dict[str, dict[int, tuple[float, ...]]]]:
        """The samples of the race, by kernel and candidate; of untuned ones, and of those that
        have faulted in it, none."""
        faulted = self._faulted(Phase.RACE)
        samples = {c: runs for c, runs in self.samples("race").items() if c not in faulted}
        return {
            task: {c: runs for c, runs in samples.items() if self._proposed_for(c, task)}
            for task in self._baselines()
        }

    def _faulted(self, phase: Phase) -> set[str]:
        """Whatever a process that is run again may find: once is enough."""
        faults = self.journal.faults(self.job.id, self.target.name)
        return {fault["candidate"] for fault in faults if fault.get("phase") == phase}

    def variants(self) -> tuple[dict[str, str], ...]:
        """The schedules with which the model is to be measured, by kernel: the race's winners, and
        the runners-up of the kernels in which they are close; nothing where they nowhere are."""
        winners, others = {}, {}
        for task, raced in self._raced().items():
            seconds = race_order(raced, self.protocol.race_processes)
            order = list(seconds)
            if order:
                winners[task] = order[0]
            if len(order) > 1 and seconds[order[1]] <= self.protocol.place_near * seconds[order[0]]:
                others[task] = order[1]
        return (winners, {**winners, **others}) if others else ()

    def winners(self) -> dict[str, str]:
        """By kernel: the race's, or the close runner-up that was faster in the model every time."""
        placed = self.samples("place")
        winners = {}
        for task, raced in self._raced().items():
            order = list(race_order(raced, self.protocol.race_processes))
            if order:
                winners[task] = order[0]
            if len(order) > 1 and faster_in_all(
                placed.get(order[1], {}), placed.get(order[0], {}), self.protocol.place_processes
            ):
                winners[task] = order[1]
        return winners

    def overturned(self) -> tuple[int, int]:
        """Kernels that were measured inside the model, and those where that changed the winner."""
        placed, winners = self.samples("place"), self.winners()
        first = (self.variants() or ({},))[0]
        told = [task for task, candidate in first.items() if candidate in placed]
        return len(told), sum(winners[task] != first[task] for task in told)

    def placed(self, found: list[dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
        """What one process says of the variants' functions, as seconds per call by kernel and
        candidate: of the kernels in which they differ.

        Raises:
            Implausible: it cannot be true.
        """
        if not found:
            return {}
        check_placed(found)
        answer: dict[str, dict[str, list[float]]] = {}
        first, second = self.variants()
        differing = [
            task for task in self.program.tasks if first.get(task.id) != second.get(task.id)
        ]
        for task in differing:
            runs = [_of_task(task, functions) for functions in found]
            if all(runs):
                answer[task.id] = {first[task.id]: runs[0], second[task.id]: runs[1]}
        return answer

    def decide_kernels(self) -> list[str]:
        """A verdict for every kernel, from the held-out run alone; the kernels that have none,
        although schedules of theirs were timed to the end."""
        winners, samples = self.winners(), self.samples("final")
        faulted = self._faulted(Phase.FINAL)
        screened = [
            m
            for m in self.journal.measurements(self.job.id, self.target.name, ("screen",))
            if m.candidate in self.candidates
        ]
        tried = {self.candidates[m.candidate].task for m in screened}
        near = {self.candidates[m.candidate].task for m in screened if not m.truncated}
        undecided = []
        for task, base in self._baselines().items():
            winner = winners.get(task)
            result = None
            if winner is not None and not {winner, base} & faulted:
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
            if result is None and (task in near or winner is not None):
                undecided.append(task)
        return undecided

    def tuned_traces(self) -> dict[str, str]:
        """The winning trace of each kernel that is FASTER; the others keep their untuned one."""
        verdicts = self.journal.verdicts(self.job.id, self.target.name)
        return {
            task.id: self.candidates[verdicts[task.id]["winner"]].trace
            for task in self.program.tasks
            if task.id in verdicts and verdicts[task.id]["verdict"] == Verdict.FASTER
        }
