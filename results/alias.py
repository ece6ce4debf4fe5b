"""Names in MLflow's registry, and which of a model's versions an alias stands for. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tunefarm.measure.stats import Verdict


def registered_name(job_name: str) -> str:
    """MLflow refuses some characters in the names of registered models."""
    return "".join("-" if c in "/:%" else c for c in job_name)


def alias_of(target: str) -> str:
    """An alias may hold letters, digits, '-' and '_'."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in target)


def takes_over(challenger: Mapping[str, str], holder: Mapping[str, str]) -> bool:
    """Whether the alias goes from the version tagged `holder` to the one tagged `challenger`: to
    the newer job's, in whatever order they are registered, but for one model on one kind of device,
    built by one toolchain, never from one that is FASTER than untuned to one that is not, nor
    against the intervals of their speed-ups, where these do not overlap. Tags that an older
    tunefarm did not write say nothing."""
    if _of(challenger) and _of(challenger) == _of(holder):
        faster, was_faster = (
            one.get("tunefarm.verdict") == Verdict.FASTER for one in (challenger, holder)
        )
        if faster != was_faster:
            return faster
        (low, high), (was_low, was_high) = _interval(challenger), _interval(holder)
        if high < was_low or was_high < low:
            return was_high < low
    return _number(challenger, "created", 0.0) >= _number(holder, "created", 0.0)


def _of(tags: Mapping[str, str]) -> tuple[str, ...]:
    """The model, the kind of device, and what built the untuned model that speed-ups are over;
    nothing where one of them is not told."""
    keys = ("tunefarm.model", "tunefarm.device", "tunefarm.toolchain")
    return tuple(tags[key] for key in keys) if all(key in tags for key in keys) else ()


def _interval(tags: Mapping[str, str]) -> tuple[float, float]:
    return _number(tags, "low", float("-inf")), _number(tags, "high", float("inf"))


def _number(tags: Mapping[str, str], key: str, otherwise: float) -> float:
    try:
        return float(tags[f"tunefarm.{key}"])
    except (KeyError, ValueError):
        return otherwise
