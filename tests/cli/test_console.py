"""What a job says, on a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tunefarm.cli.common import Moment, format_ratio
from tunefarm.cli.console import ConsoleReporter, describe
from tunefarm.scheduler.progress import Snapshot


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_that_is_said_is_taken_for_markup(tmp_path: Path) -> None:
    """Paths in brackets, and such as would end a style that nobody has begun."""
    stream = Terminal()
    reporter = ConsoleReporter(tmp_path / "job.log", stream)
    said = "ld: [v2] cannot open [/usr/lib/x.so]"
    reporter.line(said)
    reporter.update(Snapshot("net[/b]", "llvm", "tune", kernels=3, trials=9))
    reporter.close()
    assert said in stream.getvalue()
    assert "net[/b]" in stream.getvalue()
    assert said in (tmp_path / "job.log").read_text()


def test_of_a_phase_of_several_processes_is_said_how_many_are_done() -> None:
    tuning = Snapshot("net", "llvm", "tune", kernels=3, trials=9)
    assert "processes" not in describe(tuning)
    final = Snapshot("net", "llvm", "final", elapsed_s=65, processes=(2, 6))
    assert describe(final) == "llvm: 1:05 held-out runs, 2 of 6 processes done"


@pytest.mark.parametrize(
    "text", ["2026-05-04T03:02:01Z", "2026-05-04T03:02:01", "2026-05-04 05:02:01+02:00"]
)
def test_times_are_in_utc_as_they_are_printed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert Moment().convert(text, None, None) == 1777863721.0


def test_a_ratio_near_one_has_another_digit() -> None:
    assert [format_ratio(r) for r in (66.66, 10.0, 9.876, 1.04)] == ["66.7", "10.0", "9.88", "1.04"]
