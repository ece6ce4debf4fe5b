"""What earlier jobs have shipped of a model's name: whom a new artifact is compared with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.errors import ArtifactError, ArtifactTampered
from tunefarm.frontend.program import TensorSpec
from tunefarm.home import atomically, write_atomically
from tunefarm.measure import weights
from tunefarm.measure.facts import PREVIOUS
from tunefarm.measure.stats import Verdict
from tunefarm.results.alias import registered_name, shapes_of, takes_over, version_tags
from tunefarm.results.artifact_file import (
    Artifact,
    file_digest,
    open_artifact,
    release,
)
from tunefarm.results.facts import PACKAGED, Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.results.manifest import LIBRARY, WEIGHTS


@dataclass(frozen=True)
class Shipped:
    """An artifact that an earlier job has made."""

    digest: str
    job: str
    path: Path

    def __str__(self) -> str:
        return f"{self.digest[:12]} of {self.job}"


def shipped_before(journal: Journal, job: Job, target: JobTarget) -> Shipped | None:
    """The artifact that the alias of this name and target stood for, as far as the journal knows
    (`alias.takes_over`), of all that jobs older than `job` have made for these shapes on this kind
    of device; None where they have made none."""
    held: tuple[Shipped, dict[str, str]] | None = None
    for other in reversed(journal.jobs()):
        if other.created >= job.created or registered_name(other.name) != registered_name(job.name):
            continue
        if shapes_of(other) != shapes_of(job):
            continue
        row = _one(journal.artifacts(other.id), "target", target.name)
        of = next((one for one in journal.targets(other.id) if one.name == target.name), None)
        if row is None or of is None or of.device.fingerprint != target.device.fingerprint:
            continue
        if row["summary"]["verdict"] == Verdict.UNMEASURED:
            continue
        by = packaged_by(journal, other.id, target.name)
        tags = version_tags(other, of, _of_its_own(journal, other.id, row), by)
        if held is None or takes_over(tags, held[1]):
            held = Shipped(row["digest"], other.id, Path(row["path"])), tags
    return held[0] if held is not None else None


def _of_its_own(journal: Journal, job: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row of an artifact. An older tunefarm's, of an untuned build that shipped because the tuned
    one computed something else, has that one's verdict: no interval of it counts."""
    if "why_untuned" in row["summary"]:
        return row
    checks = [event["detail"] for event in journal.events(job) if event["kind"] == "checked"]
    found = _one(checks[::-1], "target", row["target"])
    if found is None or found["tuned"]:
        return row
    said = {"verdict": Verdict.SAME.value, "speedup_ci95": [1.0, 1.0]}
    return {**row, "summary": {**row["summary"], **said}}


def _one(rows: Sequence[dict[str, Any]], key: str, value: str) -> dict[str, Any] | None:
    return next((row for row in rows if row[key] == value), None)


def packaged_by(journal: Journal, job: str, target: str) -> str | None:
    """The version of tunefarm that has packaged a job's target; None of an older one."""
    found = [event["detail"] for event in journal.events(job) if event["kind"] == PACKAGED]
    row = _one(found, "target", target)
    return None if row is None else str(row["tunefarm"])


def note_previous(journal: Journal, job: str, target: str, found: Shipped, same: bool) -> None:
    """That a job's own artifact is compared with `found`; `same` where its tuned build is that, to
    the byte."""
    said = {"digest": found.digest, "of": found.job, "path": str(found.path), "same": same}
    journal.add_event(job, PREVIOUS, target=target, **said)


def noted_previous(journal: Journal, job: str, target: str) -> tuple[Shipped, bool] | None:
    """What `note_previous` was told last."""
    told = [e["detail"] for e in reversed(journal.events(job)) if e["kind"] == PREVIOUS]
    row = _one(told, "target", target)
    if row is None:
        return None
    return Shipped(row["digest"], row["of"], Path(row["path"])), row["same"]


def open_alike(
    found: Shipped, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], target: JobTarget
) -> Artifact:
    """It, if it can run beside a model of these inputs and outputs on `target`.

    Raises:
        ArtifactError: it cannot, cannot be read, or another artifact lies in its place.
    """
    artifact = open_artifact(found.path)
    if artifact.digest != found.digest:
        raise ArtifactTampered(f"{found.path} is another artifact, {artifact.digest[:12]}")
    for key, specs in (("inputs", inputs), ("outputs", outputs)):
        wanted = json.loads(json.dumps([dataclasses.asdict(one) for one in specs]))
        if artifact.manifest[key] != wanted:
            raise ArtifactError(f"it has other {key}")
    needs = artifact.manifest["requires"]["tvm_runtime"]
    here = dict(target.device.toolchain).get("tvm", "")
    if release(needs) != release(here):
        raise ArtifactError(f"it needs the TVM runtime {needs}, the device has {here}")
    return artifact


def is_same(artifact: Artifact, library: Path) -> bool:
    """Whether its library and weights are those of `library`, byte for byte."""
    files = artifact.manifest["files"]
    mine = {LIBRARY: library, WEIGHTS: weights.beside(library)}
    return all(
        name in files and files[name]["sha256"] == file_digest(p) for name, p in mine.items()
    )


def lay_out(artifact: Artifact, library: Path) -> None:
    """Its library as the file `library`, its weights beside it.

    Raises:
        ArtifactError: they are not what its manifest lists.
    """
    if WEIGHTS in artifact.manifest["files"]:
        memory = memoryview(bytearray(artifact.manifest["files"][WEIGHTS]["bytes"]))
        artifact.read_into(WEIGHTS, memory)
        with atomically(weights.beside(library)) as file:
            file.write(memory)
    write_atomically(library, artifact.read(LIBRARY))


def previous(journal: Journal, job: str, target: str) -> dict[str, Any] | None:
    """What is known of the artifact that an earlier job has shipped: `digest`, `job`, and, beside
    this job's own, how much faster that is: `speedup`, `speedup_ci95`, `verdict`. One of the same
    bytes is the SAME without having been run. None where there is none."""
    noted = noted_previous(journal, job, target)
    if noted is None:
        return None
    of = {"digest": noted[0].digest, "job": noted[0].job}
    found: dict[str, Any] = {**of, "speedup": None, "speedup_ci95": None}
    row = journal.verdicts(job, target).get(PREVIOUS)
    if row is None or row["winner"] != noted[0].digest:
        return {**found, "verdict": Verdict.UNMEASURED.value}
    if row["speedup"] is not None:
        interval = [round(row["low"], 4), round(row["high"], 4)]
        found = {**of, "speedup": round(row["speedup"], 4), "speedup_ci95": interval}
    return {**found, "verdict": row["verdict"]}
