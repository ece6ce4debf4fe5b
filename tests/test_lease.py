"""What is run on a lent GPU by one command: parts in the time that they are given, and tables of
whatever there is by then."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.simulated import SimulatedDevice
from tunefarm.devices.device import Device
from tunefarm.devices.target import make_target
from tunefarm.errors import Failure, FailureKind
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.build import Library
from tunefarm.measure.bundles.bundle import (
    Report,
    read_bundle,
    report_of,
    write_bundle,
    write_report,
)
from tunefarm.measure.bundles.run import run_bundle
from tunefarm.measure.facts import Checked, ColdStart, Compared, KernelFacts, ScreenOutcome
from tunefarm.measure.gate import Parity
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import ScreenRequest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import gpu_lease  # noqa: E402
import gpu_rivals_record  # noqa: E402
import gpu_tables  # noqa: E402

WRITES = """\
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.default_int_handler)
out, = sys.argv[1:2]
Path(out + ".began").touch()
try:
    time.sleep({seconds})
except KeyboardInterrupt:
    pass
Path(out).write_text(" ".join(sys.argv[2:]))
sys.exit({code})
"""


def part(tmp_path: Path, name: str, seconds: float, code: int = 0, share: float = 1.0):
    script = tmp_path / f"{name}.py"
    script.write_text(WRITES.format(seconds=seconds, code=code))
    return gpu_lease.Part(name, (str(script), str(tmp_path / name)), share)


@pytest.mark.slow
def test_a_part_that_does_not_end_is_ended_and_leaves_the_others_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(gpu_lease, "GRACE_S", 1.0)
    monkeypatch.setattr(gpu_lease, "_ENDING_S", 1.0)
    due = [
        part(tmp_path, "hangs", 60.0),
        part(tmp_path, "fails", 0.0, 3),
        part(tmp_path, "ends", 0),
    ]
    started = time.monotonic()
    assert gpu_lease.lease(tmp_path, [], due, 10.0) == 1
    assert time.monotonic() - started < 9
    (journey,) = json.loads((tmp_path / "lease.json").read_text())
    assert [one["code"] for one in journey["parts"]] == [gpu_lease.OVER, 3, 0]
    given = [one["given_s"] for one in journey["parts"]]
    assert given[0] == pytest.approx(3.0, abs=0.2)
    assert given[1] > 2.0, "which is what the first left"
    assert (tmp_path / "hangs").read_text() == "--for 3", "it wrote what it had"
    assert journey["machine"]["cores"] >= 1
    assert "nothing has been measured" in capsys.readouterr().out
    assert gpu_lease.lease(tmp_path, [], [part(tmp_path, "again", 0.0)], 10.0) == 0
    assert len(json.loads((tmp_path / "lease.json").read_text())) == 2


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_who_interrupts_it_ends_what_runs(tmp_path: Path, how: signal.Signals) -> None:
    script = part(tmp_path, "long", 60.0).command[0]
    program = (
        "import sys; from pathlib import Path; sys.path.append(sys.argv[1]);"
        "import gpu_lease; gpu_lease.heed_signals();"
        "due = [gpu_lease.Part(n, (sys.argv[2], sys.argv[3] + n), 1.0) for n in 'ab'];"
        "sys.exit(gpu_lease.lease(Path(sys.argv[3]).parent, [], due, 200.0))"
    )
    command = [sys.executable, "-c", program, BENCHMARKS, script, tmp_path / "made-"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "made-a.began").exists():
        time.sleep(0.05)
        assert process.poll() is None
    os.kill(process.pid, how)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (tmp_path / "made-a").exists(), "what ran wrote what it had"
    assert not (tmp_path / "made-b.began").exists()
    assert "nothing has been measured" in said


def test_each_directory_has_a_place_of_its_own(tmp_path: Path) -> None:
    for name in ("K", "N"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "gpu.bundle").touch()
    (tmp_path / "N" / "kernels.bundle").touch()
    directories = [tmp_path / "K", tmp_path / "N"]

    def reports() -> list[str]:
        found = gpu_lease.parts(tmp_path / "out", directories, "a,b")
        assert found[-1].command[1:] == (str(tmp_path / "out" / "rivals.json"), "--kernels", "a,b")
        return [str(Path(one.command[1]).relative_to(tmp_path)) for one in found[:-1]]

    first = ["out/K/gpu.bundle.report", "out/N/gpu.bundle.report"]
    assert reports() == [*first, "out/N/kernels.bundle.report"]
    (tmp_path / "N" / "network.bundle").touch()
    assert reports() == [*first, "out/N/network.bundle.report"], "whose kernels are known"


@pytest.fixture
def gpu(device: Device) -> Device:
    return replace(device, target=make_target("cuda", {"arch": "sm_90"}), sku="Paper GPU")


@pytest.fixture
def measured(tmp_path: Path, gpu: Device) -> Callable[..., Path]:
    """A directory of kernels: untuned, two kinds of schedules, and a planted fault."""

    def make(name: str, device: SimulatedDevice, limit: int = 99) -> Path:
        directory = tmp_path / name
        root = directory / "files"
        root.mkdir(parents=True)
        (root / "k.so").write_bytes(b"a library")
        spec = TensorSpec("x", (4,), "float32")
        facts = KernelFacts("k", (spec, spec), 8.0, root / "k.npz")
        untuned = ScreenRequest(Library(root / "k.so", ()), facts, Protocol(), None, True)
        other = replace(untuned, make_reference=False)
        rows = [
            *({"kernel": f"product {name}", "schedule": how} for how in ("untuned", "a", "b")),
            {"kernel": gpu_tables.PLANTED, "schedule": gpu_tables.PLANTED},
            {"kernel": f"product {name}", "schedule": "b"},
        ]
        (directory / "kernels.json").write_text(json.dumps(rows))
        path = directory / gpu_tables.KERNELS
        requests = [untuned, *[other] * 4]
        write_bundle(path, name, gpu.target, "", requests, root, [root / "k.so"], returns=False)
        run_bundle(path, report_of(path), lambda _: None, gpu, device)
        return directory

    return make


class Told(SimulatedDevice):
    """The fault is told, and the last one is the fastest."""

    def screen(self, request: ScreenRequest) -> ScreenOutcome:
        found = super().screen(request)
        if len(self.asked) == 4:
            return ScreenOutcome(None, Failure(FailureKind.CRASH, "illegal address\nmore"))
        if len(self.asked) == 3:
            return ScreenOutcome(None, Failure(FailureKind.WRONG_RESULT, "3 of 4 differ"))
        return found


def test_tables_are_of_what_there_is(measured, tmp_path: Path) -> None:
    directory = measured("K", Told())
    (tmp_path / "rivals.json").write_text(
        json.dumps({"versions": "1.0", "kernels": {"product K": {"PyTorch": 0.25}}})
    )
    text = gpu_tables.tables([directory, tmp_path / "nowhere"], tmp_path)
    assert "| product K | 500000.0 | 500000.0 | untuned | 3, 4, 4 | 0.50 |" in text
    assert "told (illegal address); 1 measurements after it went well" in text
    assert "| product K | 500000.0 (1/1) | 500000.0 (1/1) | 500000.0 (1/2) |" in text
    assert "- b, wrong_result: 1 times, first product K: 3 of 4 differ" in text


def test_an_unfinished_report_counts_and_another_bundles_does_not(
    measured, tmp_path: Path, capsys
) -> None:
    directory, other = measured("K", Told()), measured("L", SimulatedDevice())
    report = report_of(directory / gpu_tables.KERNELS)
    report.rename(report.with_name(report.name + ".part"))
    assert "product K" in gpu_tables.tables([directory], tmp_path)
    wrong = gpu_tables.place_in(tmp_path / "out", directory) / report.name
    wrong.parent.mkdir(parents=True)
    report_of(other / gpu_tables.KERNELS).rename(wrong)
    assert "product K" in gpu_tables.tables([directory], tmp_path / "out")
    assert "is on another bundle" in capsys.readouterr().err
    (directory / "kernels.json").write_text("[]")
    text = gpu_tables.tables([directory], tmp_path)
    assert "IndexError" in text, "one table that cannot be made is no reason to see none"


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        (None, "Only 0 of 3 parts were measured"),
        (0, "Only 1 of 3 parts were measured"),
        (1, "Only 2 of 3 parts were measured"),
        (2, "2.00 times faster"),
        (Failure(FailureKind.CRASH, "it fell"), "It did not run: it fell"),
    ],
)
def test_a_network_is_judged_when_all_of_it_is_there(
    gpu: Device, tmp_path: Path, processes, words: str
) -> None:
    directory = tmp_path / "N"
    root = directory / "files"
    root.mkdir(parents=True)
    (directory / "plan.json").write_text(json.dumps({"network": "n", "dtype": "float16"}))
    path = directory / gpu_tables.NETWORK
    write_bundle(path, "n", gpu.target, "", ["a", "b", "c"], root, [])
    answers: dict[int, object] = {}
    if processes is not None:
        answers[0] = Checked(root / "tuned.so", Parity(1e-3, 1e-3, True), None)
        more = [processes] if isinstance(processes, Failure) else [_run()] * processes
        answers |= dict(enumerate(more, 1))
    report = Report(read_bundle(path).id, gpu, answers, {}, {})
    write_report(report_of(path), report, root)
    assert words in gpu_tables.tables([directory], tmp_path)


def _run() -> Compared:
    samples = {"base": (2.0, 2.0, 2.0), "tuned": (1.0, 1.0, 1.0)}
    return Compared(samples, ColdStart("base", 0.1, 2.0, 1), (1.0,))


@pytest.mark.tvm
def test_what_is_most_worth_knowing_comes_first() -> None:
    from gpu import in_passes

    kinds = ["untuned", "a", "a", "a", "tensor-tile, engine", "tensor-tile, engine"]
    made = [({"kernel": kernel, "schedule": kind}, None) for kernel in "KL" for kind in kinds]
    found = [f"{row['kernel']} {row['schedule']}" for row, _ in in_passes(made)]
    first = ["untuned", "a", "a"]
    fed = ["tensor-tile, engine"] * 2
    assert found == [
        *(f"{kernel} {kind}" for kernel in "KL" for kind in first),
        *(f"{kernel} {kind}" for kernel in "KL" for kind in fed),
        "K a",
        "L a",
    ]


@pytest.mark.long
@pytest.mark.tvm
def test_a_second_journey_goes_on_from_what_the_first_one_measured() -> None:
    from crossbuild import KINDS, product, schedules, target_of, workload_of
    from gpu import AGAIN, refined

    module, target = workload_of(product("float16")), target_of("sm_80")
    first = [trace for _, trace in schedules(module, target, 2) if trace]
    fastest = [first[-1], first[0]]
    times = {**dict.fromkeys(fastest, 1e-5), first[1]: None}
    known = {trace: times.get(trace, 2e-5) for trace in first}
    kinds = KINDS - {"plain cores"}
    (_, untuned), *found = refined(module, target, 5, kinds, known)
    assert not untuned
    traces = [trace for _, trace in found]
    assert set(traces[:AGAIN]) == set(fastest)
    assert len(traces) == len(set(traces)) == AGAIN + 5
    assert not set(traces[AGAIN:]) & set(first)
    assert {kind for kind, _ in found[AGAIN:]} <= kinds


@dataclass(frozen=True)
class Timed:
    """A rival's way, that takes as long."""

    name: str
    lasts_s: float
    takes_s: float = 0.0
    error: str = ""

    def within(self):
        return contextlib.nullcontext()

    def seconds(self, make, samples: int) -> float:
        try:
            time.sleep(self.lasts_s)
        except TimeoutError as error:
            raise RuntimeError(f"compiling failed:\n{error}") from error
        if self.error:
            raise ValueError(self.error)
        return self.lasts_s


@pytest.mark.slow
def test_rivals_are_given_up_when_the_time_is_over_and_taken_up_later(tmp_path: Path) -> None:
    file = tmp_path / "rivals.json"
    about = {"device": "a GPU", "versions": "1"}
    due = [
        Timed("fast", 0.01),
        Timed("slow", 20.0),
        Timed("late", 0.01),
        Timed("bad", 0.0, error="no"),
    ]
    started = time.monotonic()
    found = gpu_rivals_record.timed([due[3], *due[:3]], None, 1, 0.5)
    assert time.monotonic() - started < 5
    assert found == {"bad": "ValueError: no", "fast": 0.01, "slow": "no time", "late": "no time"}
    record = gpu_rivals_record.Found(about, file)
    record.add("Rival", "kernel", found)
    assert record.fastest() == {"kernel": {"Rival": 0.01}}
    again = gpu_rivals_record.Found(about, file)
    assert [w.name for w in due if again.has("Rival", "kernel", w.name)] == ["fast", "bad"]
    again.add("Rival", "kernel", {"late": 0.005})
    assert json.loads(file.read_text())["kernels"] == {"kernel": {"Rival": 0.005}}
    other = gpu_rivals_record.Found({**about, "versions": "2"}, file)
    assert not other.has("Rival", "kernel", "fast"), "what others have timed is not theirs"


def test_what_is_known_to_take_longer_is_not_begun() -> None:
    found = gpu_rivals_record.timed([Timed("wide", 0.0, takes_s=9.0)], None, 1, 1.0)
    assert found == {"wide": "no time"}
