"""What an earlier job has shipped under a job's name, run beside what this one has found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tunefarm.errors import last_line
from tunefarm.measure.facts import PREVIOUS, Compared
from tunefarm.measure.judge import judge
from tunefarm.measure.stats import Verdict
from tunefarm.results.shipped import (
    Shipped,
    is_same,
    lay_out,
    note_previous,
    noted_previous,
    open_alike,
    shipped_before,
)
from tunefarm.scheduler.races import Races


@dataclass(frozen=True)
class Previous:
    """Which one it is, is decided once, and on record; nothing of the job depends on it.

    Args:
        directory: of the builds of the job's model.
    """

    races: Races
    directory: Path

    def find(self, tuned: Path) -> str:
        """Look for it, and have it run beside this job's builds, unless it is the library `tuned`,
        weights and all, to the byte; what there is to say of it."""
        races, job, name = self.races, self.races.job, self.races.target.name
        try:
            noted = noted_previous(races.journal, job.id, name)
            found = noted[0] if noted else shipped_before(races.journal, job, races.target)
            if found is None:
                return ""
            artifact = open_alike(found, races.program.inputs, races.program.outputs, races.target)
            same = is_same(artifact, tuned)
            if not same:
                lay_out(artifact, self._library_of(found))
            if noted is None or noted[1] != same:
                note_previous(races.journal, job.id, name, found, same)
        except Exception as error:
            self.drop()
            return f"not compared with what shipped before: {last_line(error)}"
        said = f"what shipped before, {found}"
        return f"it is {said}, to the byte" if same else f"beside it runs {said}"

    def library(self) -> Path | None:
        """Its own, while it is to run: not once it did not in some process, for then nothing can be
        said of it."""
        noted = self._noted()
        if noted is None or noted[1] or self._fell():
            return None
        library = self._library_of(noted[0])
        return library if library.exists() else None

    def said_of(self, answer: Compared) -> str:
        """What is to be said once a process has reported."""
        if self.library() is None or PREVIOUS in answer.samples:
            return ""
        return "what shipped before brought a process down, and runs no more beside it"

    def judge(self, ships_tuned: bool) -> None:
        """The verdict on what this job ships against it, unless one of both lacks a process."""
        noted = self._noted()
        if noted is None:
            return
        found, same = noted
        before, now = "tuned" if same else PREVIOUS, "tuned" if ships_tuned else "base"
        races, protocol, compared = self.races, self.races.protocol, None
        samples, processes = races.samples("model"), protocol.model_processes
        # All of them: what is slow may else have been spared some (`judge.may_be_spared`).
        if before != now and set(samples.get(before, {})) == set(range(processes)):
            compared = judge(samples[before], samples.get(now, {}), processes, protocol)
        otherwise = Verdict.SAME if before == now else Verdict.UNMEASURED
        races.journal.add_verdict(
            races.job.id, races.target.name, PREVIOUS, found.digest, compared, otherwise
        )

    def drop(self) -> None:
        """Its files: they are as large as the model."""
        for file in self.directory.glob(f"{PREVIOUS}*"):
            file.unlink(missing_ok=True)

    def _noted(self) -> tuple[Shipped, bool] | None:
        return noted_previous(self.races.journal, self.races.job.id, self.races.target.name)

    def _fell(self) -> bool:
        samples = self.races.samples("model")
        return bool(set(samples.get("tuned", {})) - set(samples.get(PREVIOUS, {})))

    def _library_of(self, found: Shipped) -> Path:
        """Named by its digest: what is known of a file elsewhere goes by its path."""
        return self.directory / f"{PREVIOUS}-{found.digest[:12]}.so"
