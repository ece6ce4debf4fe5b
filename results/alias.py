"""Names in MLflow's registry, and which of a model's versions an alias stands for. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunefarm.measure.stats import Verdict
from tunefarm.results.facts import Job, JobTarget


def registered_name(job_name: str) -> str:
    """MLflow refuses some characters in the names of registered models."""
    return "".join("-" if c in "/:%" else c for c in job_name)


def alias_of(target: str) -> str:
    """An alias may hold letters, digits, '-' and '_'."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in target)


def shapes_of(job: Job) -> str:
    """Those that the job gave the model's inputs: another batch is another artifact."""
    return json.dumps(sorted(job.options.get("shapes") or []))


def version_tags(
    job: Job, target: JobTarget, artifact: Mapping[str, Any], packaged_by: str | None
) -> dict[str, str]:
    """What the registry is told of a version: `artifact` is its row in the journal, and who has
    packaged it a version of tunefarm, where that is known."""
    summary = artifact["summary"]
    tags = {
        "tunefarm.digest": artifact["digest"],
        "tunefarm.file": Path(artifact["path"]).name,
        "tunefarm.job": job.id,
        "tunefarm.created": repr(job.created),
        "tunefarm.model": job.model_digest,
        "tunefarm.shapes": shapes_of(job),
        "tunefarm.device": target.device.fingerprint,
        "tunefarm.verdict": str(summary["verdict"]),
    }
    if packaged_by is not None:
        tags[_TOOLCHAIN] = f"tunefarm {packaged_by}, {target.toolchain}"
    if interval := summary["speedup_ci95"]:
        tags |= {"tunefarm.low": repr(interval[0]), "tunefarm.high": repr(interval[1])}
    if previous := summary.get("previous"):  # an older tunefarm's has none
        tags |= {"tunefarm.previous": previous["digest"], "tunefarm.against": previous["verdict"]}
    return tags


def takes_over(challenger: Mapping[str, str], holder: Mapping[str, str]) -> bool:
    """Whether the alias goes from the version tagged `holder` to the one tagged `challenger`: to
    the newer job's, in whatever order they are registered, but for one model with one shape of its
    inputs on one kind of device

    - never to one that was SLOWER where both ran in the same processes;
    - where one toolchain has built both, never from one that is FASTER than untuned to one that is
      not, nor, where they never ran together, against the intervals of their speed-ups, where these
      do not overlap.

    Tags that an older tunefarm did not write say nothing.
    """
    against = _beside(challenger, holder)
    if against == Verdict.SLOWER:
        return False
    if _are_alike(challenger, holder, _MODEL, _SHAPES, _DEVICE, _TOOLCHAIN):
        faster, was_faster = (
            one.get("tunefarm.verdict") == Verdict.FASTER for one in (challenger, holder)
        )
        if faster != was_faster:
            return faster
        (low, high), (was_low, was_high) = _interval(challenger), _interval(holder)
        if against is None and (high < was_low or was_high < low):
            return was_high < low
    return _number(challenger, "created", 0.0) >= _number(holder, "created", 0.0)


_MODEL, _SHAPES, _DEVICE = "tunefarm.model", "tunefarm.shapes", "tunefarm.device"
_TOOLCHAIN = "tunefarm.toolchain"
"""What built the untuned model that speed-ups are over."""


def _are_alike(one: Mapping[str, str], other: Mapping[str, str], *keys: str) -> bool:
    """Whether both tell all of this, and the same."""
    return all(key in one and one[key] == other.get(key) for key in keys)


def _beside(challenger: Mapping[str, str], holder: Mapping[str, str]) -> str | None:
    """The verdict of their measurement side by side; None where there is none."""
    if not _are_alike(challenger, holder, _MODEL, _DEVICE):
        return None
    if challenger.get("tunefarm.previous", "") != holder.get("tunefarm.digest"):
        return None
    against = challenger.get("tunefarm.against")
    return None if against == Verdict.UNMEASURED else against


def _interval(tags: Mapping[str, str]) -> tuple[float, float]:
    return _number(tags, "low", float("-inf")), _number(tags, "high", float("inf"))


def _number(tags: Mapping[str, str], key: str, otherwise: float) -> float:
    try:
        return float(tags[f"tunefarm.{key}"])
    except (KeyError, ValueError):
        return otherwise
