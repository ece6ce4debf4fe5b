"""What is built is what is meant: one top-level name, with every room in it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tunefarm.measure import code

ROOT = Path(__file__).parent.parent
ROOMS = ["cli", "costmodel", "devices", "frontend", "measure", "results", "scheduler", "search"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel made from it."""
    directory = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory), str(ROOT)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_the_wheel_has_one_top_level_name_and_every_room(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"tunefarm"}
    for room in ROOMS:
        sources = sorted(f"tunefarm/{p.relative_to(ROOT)}" for p in (ROOT / room).rglob("*.py"))
        packed = sorted(n for n in names if n.startswith(f"tunefarm/{room}/"))
        assert packed == sources, room
    assert "tunefarm/py.typed" in names
    assert "tunefarm/search/spaces/generic.py" in names


def test_whoever_has_the_wheel_has_the_same_tunefarm(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a checkout of the same code: they may be machines of one farm."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    here = code.whole_code.__wrapped__()
    monkeypatch.setattr(code, "_ROOT", tmp_path / "tunefarm")
    assert code.whole_code.__wrapped__() == here


def test_the_sdist_builds_on_its_own(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert any(n.endswith("tunefarm/search/replay.py") for n in names)
