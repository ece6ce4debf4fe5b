"""tunefarm costmodel, on lessons that no job had to be run for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import tunefarm
from tests.costmodel.test_transfer import three_networks
from tunefarm.costmodel.transfer import load_transfer
from tunefarm.home import Home
from tunefarm.results.lessons import lessons_path, read_lessons, write_lessons


@pytest.mark.slow
def test_a_farm_without_lessons_says_so(home: Home, tmp_path: Path) -> None:
    for arguments in (["train"], ["evaluate"], ["export", tmp_path / "out.parquet"]):
        done = tunefarm("costmodel", *arguments)
        assert done.code == 5
        assert "no lessons" in done.err
        assert "tunefarm submit" in done.err
    assert not home.costmodel.exists()
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.long
def test_from_lessons_to_a_model(home: Home, tmp_path: Path) -> None:
    rows = three_networks()
    write_lessons(lessons_path(home, "job", "llvm"), rows)
    exported = tmp_path / "lessons.parquet"
    assert tunefarm("costmodel", "export", exported).out.startswith(f"{len(rows)} lessons")
    assert len(read_lessons(exported)) == len(rows)
    evaluated = tunefarm("costmodel", "evaluate", "--data", exported, "--json").json
    assert {one["network"] for one in evaluated["evidence"]} == {"a", "b", "c"}
    assert not home.costmodel.exists(), "evaluating changes nothing"
    trained = tunefarm("costmodel", "train", "--json").json
    assert trained["evidence"] == evaluated["evidence"]
    assert trained["kept"] == ["paper"]
    assert list(load_transfer(home.costmodel).corrections) == ["paper"]
    assert "kept: paper" in tunefarm("costmodel", "train").out


@pytest.mark.slow
def test_a_file_that_is_no_data_is_exit_5(home: Home, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no table")
    done = tunefarm("costmodel", "train", "--data", tmp_path / "notes.txt")
    assert done.code == 5
    assert "holds no lessons" in done.err
    assert "Traceback" not in done.err
