"""What earlier jobs have shipped of a model's name: whom a new artifact is compared with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunefarm.errors import ArtifactError
from tunefarm.frontend.program import TensorSpec
from tunefarm.home import atomically, write_atomically
from tunefarm.measure import weights
from tunefarm.measure.facts import PREVIOUS
from tunefarm.measure.stats import Verdict
from tunefarm.results.alias import registered_name, takes_over, version_tags
from tunefarm.results.artifact_file import (
    LIBRARY,
    WEIGHTS,
    Artifact,
    file_digest,
    open_artifact,
    release,
)
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal


def shipped_before(journal: Journal, job: Job, target: JobTarget) -> dict[str, Any] | None:
    """The artifact, a row of the journal, that the alias of this name and target stood for, of all
    that jobs older than `job` have made on this kind of device; None where they have made none."""
    held: tuple[dict[str, Any], dict[str, str]] | None = None
    for other in reversed(journal.jobs()):
        if other.created >= job.created or registered_name(other.name) != registered_name(job.name):
            continue
        made = {row["target"]: row for row in journal.artifacts(other.id)}
        row = made.get(target.name)
        if row is None or row["summary"]["verdict"] == Verdict.UNMEASURED:
            continue
        of = next(one for one in journal.targets(other.id) if one.name == target.name)
        if of.device.fingerprint != target.device.fingerprint:
            continue
        tags = version_tags(other, of, row)
        if held is None or takes_over(tags, held[1]):
            held = row, tags
    return held[0] if held is not None else None


def open_alike(
    path: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], target: JobTarget
) -> Artifact:
    """An artifact that can run beside a model of these inputs and outputs, on `target`.

    Raises:
        ArtifactError: it cannot, or cannot be read.
    """
    artifact = open_artifact(path)
    for key, specs in (("inputs", inputs), ("outputs", outputs)):
        wanted = json.loads(json.dumps([dataclasses.asdict(one) for one in specs]))
        if artifact.manifest[key] != wanted:
            raise ArtifactError(f"{path.name} has other {key}")
    needs, here = artifact.manifest["requires"]["tvm_runtime"], dict(target.device.toolchain)["tvm"]
    if release(needs) != release(here):
        raise ArtifactError(f"{path.name} needs the TVM runtime {needs}, the device has {here}")
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
    told = [e["detail"] for e in journal.events(job) if e["kind"] == PREVIOUS]
    told = [one for one in told if one["target"] == target]
    if not told:
        return None
    last = told[-1]
    found = {"digest": last["digest"], "job": last["of"], "speedup": None, "speedup_ci95": None}
    row = journal.verdicts(job, target).get(PREVIOUS)
    if row is None or row["speedup"] is None:
        verdict = Verdict.SAME if last["same"] else Verdict.UNMEASURED
        return {**found, "verdict": verdict.value}
    interval = [round(row["low"], 4), round(row["high"], 4)]
    measured = {"speedup": round(row["speedup"], 4), "speedup_ci95": interval}
    return {**found, **measured, "verdict": row["verdict"]}
