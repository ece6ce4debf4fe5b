from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.cli.common import Duration, Shape, format_seconds
from tunefarm.cli.console import describe
from tunefarm.cli.main import _COMMANDS, cli
from tunefarm.scheduler.progress import Snapshot


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("0.5h", 1800), ("2m5s", 125)],
)
def test_durations(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.slow
@given(st.text(max_size=8))
def test_what_is_no_duration_is_refused(text: str) -> None:
    try:
        seconds = Duration().convert(text, None, None)
    except click.BadParameter:
        return
    assert seconds > 0


def test_shapes() -> None:
    assert Shape().convert("a=b=1,3", None, None) == ("a=b", (1, 3))
    with pytest.raises(click.BadParameter):
        Shape().convert("x=1,-1", None, None)


def test_seconds_are_readable() -> None:
    assert [format_seconds(s) for s in (None, 0, 65, 3661)] == ["-", "0:00", "1:05", "1:01:01"]


def test_progress_is_one_line() -> None:
    snapshot = Snapshot("j", "llvm", "tune", 3, 9, 8, 7, 1, 20, 0.1, 0.01, 12.0, 30.0)
    text = describe(snapshot)
    assert "\n" not in text
    for part in ("llvm", "tuning", "7/20 measured", "1 failed", "10 ms", "10.0x", "0:30 left"):
        assert part in text


@pytest.mark.parametrize("name", list(_COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name != "port":
            assert parameter.help, f"{name} {parameter.name}"
