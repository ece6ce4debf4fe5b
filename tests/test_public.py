"""The ground floor: lazy public names, a complete error tree, and the layout."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import tunefarm
from tunefarm import errors

ROOT = Path(__file__).parent.parent
ROOMS = ["cli", "costmodel", "devices", "frontend", "measure", "results", "scheduler", "search"]
HEAVY = ("ray", "mlflow", "tvm", "optuna", "xgboost", "pandas", "matplotlib", "onnx")


def test_every_public_name_is_there() -> None:
    for name in tunefarm.__all__:
        assert getattr(tunefarm, name) is not None
    with pytest.raises(AttributeError):
        _ = tunefarm.nothing


def test_errors_drawn_in_the_docstring_are_the_errors_there_are() -> None:
    assert errors.__doc__ is not None
    classes = [
        (name, one)
        for name, one in vars(errors).items()
        if inspect.isclass(one) and issubclass(one, errors.TunefarmError)
    ]
    for name, one in classes:
        assert name in errors.__doc__, name
        assert one.exit_code in (1, 2, 3, 4, 5, 6, 130)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_stand_at_the_root_and_are_linked(room: str) -> None:
    link = ROOT / "tunefarm" / room
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{room}"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tunefarm.cli.main import cli\n"
        "try: cli.main(['--help'], standalone_mode=False)\nexcept SystemExit: pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_loading_an_artifact_imports_no_tuner() -> None:
    code = (
        "import sys, tunefarm\ntunefarm.load\n"
        "heavy = ('ray','mlflow','optuna','xgboost','pandas','matplotlib','onnx','sqlalchemy')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
