"""What a job begins with, and what it does when that cannot be had."""

from __future__ import annotations

import pytest

from tests.costmodel.test_transfer import lessons, three_networks
from tunefarm.costmodel.transfer import load_transfer, train
from tunefarm.home import Home
from tunefarm.results.facts import Job
from tunefarm.results.lessons import lessons_path, write_lessons
from tunefarm.scheduler import learning


def job(transfer: bool = True) -> Job:
    return Job("one", "one", 0.0, "", "", {"transfer": transfer}, {})


@pytest.mark.slow
def test_a_job_keeps_the_model_that_it_began_with(home: Home) -> None:
    train(three_networks())[0].save(home.costmodel)
    path, note = learning.begin(home, job())
    assert path is not None
    assert "3 networks" in note
    began_with = path.read_bytes()
    train([*three_networks(), *lessons("d")])[0].save(home.costmodel)
    assert learning.begin(home, job())[0] == path
    assert path.read_bytes() == began_with


def test_a_job_that_began_without_a_model_goes_on_without(home: Home) -> None:
    assert learning.begin(home, job()) == (None, "")
    train(three_networks())[0].save(home.costmodel)
    assert learning.begin(home, job()) == (None, "")


def test_who_wants_no_transfer_gets_none(home: Home) -> None:
    train(three_networks())[0].save(home.costmodel)
    assert learning.begin(home, job(transfer=False)) == (None, "")
    assert not home.job_dir("one").exists()


def test_a_model_that_cannot_be_read_is_said_and_left(home: Home) -> None:
    home.costmodel.write_text("no model")
    path, note = learning.begin(home, job())
    assert path is None
    assert "going on without it" in note


@pytest.mark.slow
def test_a_farm_learns_in_a_child(home: Home) -> None:
    assert learning.learn(home) == ""
    write_lessons(lessons_path(home, "one", "llvm"), three_networks())
    assert learning.learn(home) == f"cost model trained on {len(three_networks())} results: paper"
    assert list(load_transfer(home.costmodel).corrections) == ["paper"]


@pytest.mark.slow
def test_training_that_fails_is_said(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lessons(lessons_path(home, "one", "llvm"), three_networks())
    home.costmodel.mkdir()
    assert "could not be trained" in learning.learn(home)
    monkeypatch.setattr(learning, "TRAIN_LIMIT_S", 0.01)
    assert "could not be trained" in learning.learn(home)
