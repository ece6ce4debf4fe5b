"""Which version of a model a release pipeline gets."""

from __future__ import annotations

import pytest

from tunefarm.results.alias import alias_of, registered_name, takes_over


def tags(created: float, verdict: str, low: float, high: float, **others: str) -> dict[str, str]:
    of = {"model": "m", "shapes": "[]", "device": "znver4", "toolchain": "t", **others}
    said = {"created": created, "verdict": verdict, "low": low, "high": high, **of}
    return {f"tunefarm.{key}": str(value) for key, value in said.items()}


OLD = tags(1.0, "FASTER", 3.0, 4.0)


@pytest.mark.parametrize(
    ("challenger", "taken"),
    [
        (tags(2.0, "FASTER", 3.5, 4.5), True),
        (tags(2.0, "FASTER", 2.9, 3.1), True),  # they overlap
        (tags(2.0, "FASTER", 2.0, 2.9), False),
        (tags(2.0, "AMBIGUOUS", 0.9, 1.1), False),
        (tags(2.0, "SLOWER", 0.8, 0.9), False),
        (tags(0.5, "FASTER", 3.5, 4.5), False),  # an older job, registered later
        (tags(0.5, "FASTER", 4.1, 4.5), True),
        (tags(2.0, "AMBIGUOUS", 0.9, 1.1, model="retrained"), True),
        (tags(2.0, "FASTER", 1.5, 1.6, device="znver5"), True),
        (tags(2.0, "FASTER", 1.5, 1.6, shapes='[["x", [8, 3]]]'), True),  # of another batch
        (tags(2.0, "FASTER", 1.5, 1.6, toolchain="of a quicker untuned build"), True),
        ({"tunefarm.created": "2.0"}, True),
        ({"tunefarm.created": "0.5"}, False),
        ({}, False),
    ],
)
def test_an_alias_is_not_given_to_what_is_worse(challenger: dict[str, str], taken: bool) -> None:
    assert takes_over(challenger, OLD) == taken


def beside(verdict: str, digest: str = "d1", **others: str) -> dict[str, str]:
    """A newer version whose interval against untuned lies below the old one's, and that has run in
    the same processes as the artifact `digest`."""
    return tags(2.0, "FASTER", 2.0, 2.9, previous=digest, against=verdict, **others)


@pytest.mark.parametrize(
    ("challenger", "taken"),
    [
        (beside("FASTER"), True),  # whatever their distances to the untuned build
        (beside("SAME"), True),
        (beside("AMBIGUOUS"), True),
        (beside("SLOWER"), False),
        (beside("SLOWER", toolchain="of a quicker untuned build"), False),
        (beside("SLOWER", model="retrained"), True),
        (beside("SLOWER", device="znver5"), True),
        (beside("UNMEASURED"), False),  # then the intervals decide
        (beside("FASTER", "another"), False),
        (tags(2.0, "AMBIGUOUS", 0.9, 1.1, previous="d1", against="FASTER"), False),
    ],
)
def test_who_ran_beside_the_holder_goes_by_that(challenger: dict[str, str], taken: bool) -> None:
    assert takes_over(challenger, {**OLD, "tunefarm.digest": "d1"}) == taken


def test_whoever_is_faster_takes_it_from_one_that_is_not() -> None:
    assert takes_over(tags(1.0, "FASTER", 1.1, 1.2), tags(2.0, "AMBIGUOUS", 0.9, 1.3))
    assert takes_over(OLD, {}), "of an older tunefarm's version nothing is known"


def test_names_that_mlflow_takes() -> None:
    assert registered_name("a/b:c%d") == "a-b-c-d"
    assert alias_of("cuda:arch=sm_90") == "cuda-arch-sm_90"
