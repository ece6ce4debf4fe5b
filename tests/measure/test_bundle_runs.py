"""Where a bundle's run ends before its end, and where it goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulated import SimulatedDevice
from tunefarm.errors import DeviceLost
from tunefarm.measure.bundles import run
from tunefarm.measure.bundles.bundle import read_report, write_bundle
from tunefarm.measure.bundles.run import run_bundle
from tunefarm.measure.facts import ScreenOutcome
from tunefarm.measure.requests import ScreenRequest
from tunefarm.process import ChildDied


def test_an_interrupted_run_leaves_what_it_has(paper, tmp_path: Path) -> None:
    path, _, root, gpu = paper

    class Interrupted(SimulatedDevice):
        def screen(self, request: ScreenRequest) -> ScreenOutcome:
            if self.asked:
                raise KeyboardInterrupt
            return super().screen(request)

    report = tmp_path / "report"
    run_bundle(path, report, lambda text: None, gpu, Interrupted())
    assert set(read_report(report, root).answers) == {0}
    again = SimulatedDevice()
    run_bundle(path, report, lambda text: None, gpu, again)
    assert set(read_report(report, root).answers) == {0, 1}
    assert len(again.asked) == 1, "what was measured is not measured again"
    other = replace(gpu, host="another machine of the kind")
    run_bundle(path, report, lambda text: None, other, Interrupted())
    assert set(read_report(report, root).answers) == {0, 1}


def test_a_run_ends_when_its_time_is_over(paper, tmp_path: Path) -> None:
    path, _, root, gpu = paper

    class Slow(SimulatedDevice):
        def screen(self, request: ScreenRequest) -> ScreenOutcome:
            time.sleep(0.3)
            return super().screen(request)

    report, said = tmp_path / "report", []
    run_bundle(path, report, said.append, gpu, Slow(), limit_s=0.2)
    assert set(read_report(report, root).answers) == {0}, "one that was begun is finished"
    assert said[-1] == "the time is over: 1 of 2 are in the report"
    run_bundle(path, report, said.append, gpu, SimulatedDevice())
    assert set(read_report(report, root).answers) == {0, 1}


ENDED = """\
import os, signal, sys
from pathlib import Path
from tests.simulated import SimulatedDevice
from tunefarm.devices.device import device_from_dict
from tunefarm.measure.bundles.main import heed_signals
from tunefarm.measure.bundles.run import run_bundle

class Ends(SimulatedDevice):
    def screen(self, request):
        if self.asked:
            os.kill(os.getpid(), int(sys.argv[4]))
        return super().screen(request)

heed_signals()
device = device_from_dict(__import__("json").loads(sys.argv[3]))
run_bundle(Path(sys.argv[1]), Path(sys.argv[2]), print, device, Ends())
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_whoever_ends_it_gets_a_report(paper, tmp_path: Path, how: signal.Signals) -> None:
    """Also where a shell has begun it in the background, and had it ignore Ctrl-C."""
    path, _, root, gpu = paper
    report, device = tmp_path / "report", json.dumps(gpu.to_dict())
    command = [sys.executable, "-c", ENDED, path, report, device, str(int(how))]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 0, done.stderr
    assert set(read_report(report, root).answers) == {0}


def test_what_is_not_to_come_home_is_made_again(paper, tmp_path: Path) -> None:
    """References of large kernels are gigabytes together, and nobody at home asks for them."""
    _, requests, root, gpu = paper
    path, report = tmp_path / "away.bundle", tmp_path / "report"
    files = [requests[0].library.path]
    write_bundle(*(path, "job", gpu.target, gpu.fingerprint, requests, root, files), returns=False)

    class Interrupted(SimulatedDevice):
        def screen(self, request: ScreenRequest) -> ScreenOutcome:
            if self.asked:
                raise KeyboardInterrupt
            return super().screen(request)

    run_bundle(path, report, lambda text: None, gpu, Interrupted())
    found = read_report(report, root)
    assert (set(found.answers), found.files) == ({0}, {})
    again = SimulatedDevice()
    run_bundle(path, report, lambda text: None, gpu, again)
    assert [one.make_reference for one in again.asked] == [True, False]
    assert set(read_report(report, root).answers) == {0, 1}


def test_an_unfinished_report_is_not_taken_for_the_whole(
    paper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    path, _, root, gpu = paper
    report = tmp_path / "report"
    monkeypatch.setattr(run, "SAVE_EVERY_S", 0.0)

    class Killed(SimulatedDevice):
        def screen(self, request: ScreenRequest) -> ScreenOutcome:
            if self.asked:
                raise MemoryError("somebody has ended it")
            return super().screen(request)

    with pytest.raises(MemoryError):
        run_bundle(path, report, lambda text: None, gpu, Killed())
    assert not report.exists()
    again = SimulatedDevice()
    run_bundle(path, report, lambda text: None, gpu, again)
    assert len(again.asked) == 1
    assert set(read_report(report, root).answers) == {0, 1}
    assert list(tmp_path.glob("*.part")) == []


def test_a_process_that_falls_is_an_answer(paper, tmp_path: Path) -> None:
    path, _, root, gpu = paper

    class Falls(SimulatedDevice):
        def screen(self, request: ScreenRequest) -> ScreenOutcome:
            raise ChildDied(-11, "")

    run_bundle(path, tmp_path / "report", lambda text: None, gpu, Falls())
    answers = read_report(tmp_path / "report", root).answers
    assert all("SIGSEGV" in one.message for one in answers.values())
    assert len(answers) == 2


def test_what_a_device_said_before_it_was_lost_is_in_the_report(paper, tmp_path: Path) -> None:
    path, _, root, gpu = paper
    report = tmp_path / "report"

    class Lost(SimulatedDevice):
        def screen(self, request: ScreenRequest) -> ScreenOutcome:
            if self.asked:
                raise DeviceLost("it has fallen off its bus")
            return super().screen(request)

    class Never(SimulatedDevice):
        def screen(self, request: ScreenRequest) -> ScreenOutcome:
            raise DeviceLost("it was never there")

    said: list[str] = []
    with pytest.raises(DeviceLost):
        run_bundle(path, report, said.append, gpu, Never())
    assert not report.exists(), "it has said nothing"
    with pytest.raises(DeviceLost):
        run_bundle(path, report, said.append, gpu, Lost())
    assert "the device is lost: 1 of 2 are in the report" in said
    assert read_report(report, root).answers.keys() == {0}, "nobody is blamed"
    run_bundle(path, report, said.append, gpu, SimulatedDevice())
    assert read_report(report, root).answers.keys() == {0, 1}
    assert list(tmp_path.glob("*.part")) == []
