"""A cost model is trained on some networks, and judged on others."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tunefarm.costmodel.lessons import SKETCH, VERSION, Lesson, distinct, excesses
from tunefarm.costmodel.transfer import (
    Transfer,
    evaluate,
    fit_correction,
    load_transfer,
    train,
)
from tunefarm.errors import StoreError


def lessons(
    network: str,
    *,
    kernels: int = 6,
    family: str = "paper",
    seed: int = 0,
    bias: float = 0.8,
    points: int = 24,
) -> list[Lesson]:
    """Each kernel has an offset of its own; the hardware model is off by `bias` times the second
    figure, which is what there is to learn."""
    rng = np.random.default_rng(seed + sum(map(ord, network)))
    found = []
    for kernel in range(kernels):
        offset = rng.normal(0, 1)
        for point in range(points):
            figures = rng.uniform(-1, 1, 4)
            expected = 1e-3 * math.exp(0.3 * figures[0])
            latency = expected * math.exp(offset + bias * figures[1] + rng.normal(0, 0.01))
            found.append(
                Lesson(
                    network,
                    "device",
                    f"{network} {kernel}",
                    f"{network} {kernel} {point} {family}",
                    family,
                    figures,
                    None if family == SKETCH else expected,
                    latency if rng.random() > 0.03 else None,
                )
            )
    return found


def three_networks(**options: float) -> list[Lesson]:
    return [one for name in ("a", "b", "c") for one in lessons(name, **options)]  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_the_hardware_model_always_gets_wrong_is_learnt() -> None:
    model, evidence = train(three_networks())
    assert {(one.network, one.kernels) for one in evidence} == {("a", 6), ("b", 6), ("c", 6)}
    for one in evidence:
        assert one.trials_learnt < one.trials_without / 2
        assert one.learnt < one.without
    unseen = lessons("new", kernels=1, points=60)
    found = model.correction("paper", np.stack([one.features for one in unseen]))
    assert found is not None
    sound = np.array([one.latency_s is not None for one in unseen])
    assert np.corrcoef(found[sound], excesses(unseen)[sound])[0, 1] > 0.95


def test_what_does_not_carry_over_is_dropped() -> None:
    contrary = [
        one for i, name in enumerate("abcd") for one in lessons(name, bias=0.8 if i % 2 else -0.8)
    ]
    model, evidence = train(contrary)
    assert evidence
    assert not model.corrections
    assert model.about["dropped"] == ["paper"]
    assert model.correction("paper", np.zeros((2, 4))) is None


def test_a_ranking_of_sketches_carries_over_as_well() -> None:
    model, (first, *_) = train(three_networks(family=SKETCH))
    assert model.ranking is not None
    assert first.trials_learnt < first.trials_without


def test_with_one_network_a_part_of_its_kernels_is_left_out() -> None:
    evidence = evaluate(lessons("a", kernels=8))
    assert [one.network for one in evidence] == [f"a {i}/4" for i in (1, 2, 3, 4)]
    assert not evaluate(lessons("a", kernels=2)), "too few to leave any out"


def test_a_kernel_that_two_networks_share_is_no_evidence_for_itself() -> None:
    shared = [replace(one, network="b") for one in lessons("a", kernels=6)]
    assert not evaluate([*lessons("a", kernels=6), *shared])


def test_many_networks_are_left_out_several_at_a_time() -> None:
    rows = [one for i in range(9) for one in lessons(f"n{i}", kernels=2, points=10)]
    evidence = evaluate(rows)
    assert len(evidence) == 6
    assert sum(len(one.network.split()) for one in evidence) == 9


def test_a_kernel_of_failures_alone_teaches_nothing_and_breaks_nothing() -> None:
    dead = [replace(one, latency_s=None) for one in lessons("dead", kernels=8)]
    model, evidence = train(dead)
    assert not model.corrections
    assert not evidence
    late = [
        replace(one, latency_s=None) if one.candidate.split()[2] in "0123456789" else one
        for one in three_networks()
    ]
    assert all(math.isfinite(one.without + one.learnt) for one in evaluate(late))


@pytest.mark.slow
def test_lessons_of_another_length_are_left_out() -> None:
    old = [replace(one, features=one.features[:3]) for one in lessons("old")]
    assert train([*old, *three_networks()])[0].about["networks"] == 3


@pytest.mark.slow
def test_training_is_deterministic() -> None:
    rows = three_networks()
    features = np.stack([one.features for one in rows[:50]])
    first, second = (train(rows)[0].correction("paper", features) for _ in range(2))
    assert first is not None
    assert np.array_equal(first, second)


def test_a_candidate_that_two_jobs_know_counts_once() -> None:
    rows = lessons("a", kernels=1)
    assert len(distinct([*rows, *rows])) == len(rows)


def test_failures_are_learnt_as_slow() -> None:
    rows = [
        replace(one, latency_s=None) if one.features[2] > 0.5 else one
        for one in three_networks(bias=0.0)
    ]
    booster = fit_correction(rows, 0)
    model = Transfer({"paper": booster})
    found = model.correction("paper", np.array([[0, 0, 0.9, 0], [0, 0, -0.9, 0.0]]))
    assert found is not None
    assert found[0] > found[1] + 0.3


@pytest.mark.slow
def test_a_model_is_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "costmodel.json"
    model, _ = train([*three_networks(), *three_networks(family=SKETCH)])
    model.save(path)
    again = load_transfer(path)
    features = np.random.default_rng(0).uniform(-1, 1, (20, 4))
    first, second = model.correction("paper", features), again.correction("paper", features)
    assert first is not None
    assert second is not None
    assert np.array_equal(first, second)
    assert again.ranking is not None
    assert again.about == model.about
    assert again.correction("paper", np.zeros((2, 7))) is None, "figures of another version"


def test_no_model_is_an_empty_model(tmp_path: Path) -> None:
    assert not load_transfer(tmp_path / "none.json").corrections


@pytest.mark.parametrize("text", ["", "{", "[]", f'{{"version": {VERSION}}}', "\x00\xff"])
def test_a_file_that_is_no_model_is_said_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "costmodel.json"
    path.write_text(text)
    with pytest.raises(StoreError, match="cannot be read"):
        load_transfer(path)


def test_a_model_that_was_cut_short_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "costmodel.json"
    train(three_networks())[0].save(path)
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(StoreError, match="train"):
        load_transfer(path)
    path.write_text(text.replace('"paper": "', '"paper": "AAAA'))
    with pytest.raises(StoreError, match="train"):
        load_transfer(path)
    path.write_text('{"version": 99}')
    assert not load_transfer(path).corrections, "of a later version: not for us"
