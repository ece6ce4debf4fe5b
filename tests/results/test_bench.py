"""Runtimes side by side: the adapters' conformance suite, and what is made of their reports."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest

from tests import models
from tunefarm.cli.bench import ALL
from tunefarm.devices import cpu
from tunefarm.errors import JobFailed, UsageError
from tunefarm.frontend.onnx.file import ImportLimits, input_specs, read_model
from tunefarm.frontend.onnx.half import narrowed
from tunefarm.home import Home
from tunefarm.measure.allowance import VARIABLE
from tunefarm.measure.runner import MODEL_WAIT_S
from tunefarm.measure.steady import NETWORK_S, while_near
from tunefarm.results import bench_record, plots
from tunefarm.results.bench import BenchProtocol, Entry, Watch, bench
from tunefarm.results.bench_figures import figures, summarised
from tunefarm.results.bench_round import MOST_TURNS, SHORT_WAIT_S, Contestant, Pace, Report
from tunefarm.results.runtimes import RUNTIMES, runtime
from tunefarm.results.runtimes.contract import Subject
from tunefarm.results.runtimes.serve import SETTLE_S, Load, Loaded, Turn, _Ready

OPTIONAL = {"openvino", "iree", "inductor", "xla"}
"""What `pip install tunefarm[NAME]` adds."""
QUICK = BenchProtocol(processes=2, seconds=0.02, least=3)


def subject_of(directory: Path, model: Path) -> Subject:
    loaded = read_model(model, ImportLimits())
    outputs = tuple(output.name for output in loaded.graph.output)
    return Subject(model, input_specs(loaded), outputs, 2, directory / "bench")


@pytest.mark.tvm
def test_half_precision_is_held_against_single_precision(tmp_path: Path) -> None:
    model = tmp_path / "half.onnx"
    onnx.save(narrowed(onnx.load(models.cnn(tmp_path / "model.onnx")), "float16"), model)
    subject = subject_of(tmp_path, model)
    for one in bench(subject, ["onnxruntime"], QUICK, Watch()):
        assert all(report.right and report.max_rel_err > 0 for report in one.reports)
    with np.load(subject.directory / "reference.npz") as stored:
        assert str(stored["precision"]) == "float16"
        assert stored["0"].dtype == np.float32


@pytest.mark.tvm
@pytest.mark.parametrize("name", sorted(set(RUNTIMES) - {"tunefarm"}))
def test_every_adapter_computes_the_model(name: str, tmp_path: Path) -> None:
    """Two inputs of different shapes and two outputs, so that their order matters.

    The optional runtimes are too large for the lock to hold them; where one is installed, its
    adapter is tested, and elsewhere the skip names what to install. No other may be missing.
    """
    subject = subject_of(tmp_path, models.two_by_two(tmp_path / "model.onnx"))
    if missing := runtime(name).missing(subject):
        assert name in OPTIONAL, missing
        pytest.skip(f"{name} is an optional extra of the package, {missing}")
    kept: list[int] = []
    watch = Watch(keep=lambda entries: kept.append(len(entries)))
    entries = bench(subject, [name], QUICK, watch)
    assert kept == [len(entries)] * QUICK.processes
    assert [one.setting for one in entries] == list(runtime(name).settings)
    for one in entries:
        assert not one.out
        assert one.versions
        assert len(one.reports) == QUICK.processes
        for report in one.reports:
            samples = [sample for turn in report.turns for sample in turn]
            assert len(samples) >= QUICK.least
            assert min(samples) > 0
            assert report.load_s > 0 < report.first_s
            assert report.max_rel_err < 1e-3


@pytest.mark.tvm
def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, models.two_by_two(tmp_path / "model.onnx"))
    (entry,) = bench(subject, ["tunefarm"], QUICK, Watch())
    assert entry.out.startswith("skipped: no artifact")
    nothing = dataclasses.replace(subject, artifact=tmp_path / "nothing.tfa")
    (entry,) = bench(nothing, ["tunefarm"], QUICK, Watch())
    assert "there is no artifact" in entry.out
    (row,) = figures([entry], QUICK)
    assert row == {"runtime": "tunefarm", "versions": entry.versions, "out": entry.out}
    with pytest.raises(UsageError, match="no runtime 'caffe'"):
        runtime("caffe")
    (tmp_path / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(JobFailed, match="cannot run it"):
        bench(subject, ["onnxruntime"], QUICK, Watch())


class Host:
    """Takes a core away for a while, at given times that it was asked whether all is there."""

    def __init__(self, *taken: int, for_good: bool = False) -> None:
        self.taken, self.for_good = taken, for_good
        self.asked: list[float] = []

    def steady(self, limit_s: float) -> bool:
        """Who waits finds it there again."""
        self.asked.append(limit_s)
        return not self.for_good and (limit_s > 0 or len(self.asked) not in self.taken)


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("host", "turns", "disturbed"),
    [(Host(), 1, 0), (Host(5), 2, 0), (Host(5, 7), 2, 1), (Host(for_good=True), 1, 1)],
)
def test_a_turn_that_was_disturbed_is_taken_once_more_and_counted(
    host: Host, turns: int, disturbed: int, tmp_path: Path
) -> None:
    """It is asked, not waited for, afterwards: by then all would be there again."""
    subject = subject_of(tmp_path, models.two_by_two(tmp_path / "model.onnx"))
    one = dataclasses.replace(QUICK, processes=1)
    entries = bench(subject, ["onnxruntime"], one, Watch(steady=host.steady))
    for report in (report for entry in entries for report in entry.reports):
        assert (len(report.turns), report.disturbed) == (1, disturbed)
    loading, timing = host.asked[:3], host.asked[3:]
    assert loading == [MODEL_WAIT_S] * 3
    assert timing == ([MODEL_WAIT_S] if host.for_good else [MODEL_WAIT_S, 0.0] * turns)


@pytest.mark.tvm
def test_a_machine_that_is_slow_for_good_is_not_waited_for_before_every_turn(
    tmp_path: Path,
) -> None:
    subject = subject_of(tmp_path, models.two_by_two(tmp_path / "model.onnx"))
    pace, host = dataclasses.replace(QUICK, processes=1, turn_s=0.002), Host(for_good=True)
    bench(subject, ["onnxruntime"], pace, Watch(steady=host.steady))
    assert set(host.asked[4:]) == {SHORT_WAIT_S}


@pytest.mark.tvm
@pytest.mark.parametrize("still", [True, False])
def test_who_dies_is_out_and_the_others_go_on(still: bool, tmp_path: Path) -> None:
    """While it stands still, as where memory is short, or at its work."""
    subject = subject_of(tmp_path, models.two_by_two(tmp_path / "model.onnx"))
    pace = dataclasses.replace(QUICK, processes=2, seconds=0.1, turn_s=0.01)
    times = itertools.count()

    def steady(limit_s: float) -> bool:
        if limit_s == 0 and next(times) == 1:
            victim = contestants()[0]
            if still:
                victim.kill()
                while victim.status() != psutil.STATUS_ZOMBIE:
                    time.sleep(0.01)
            else:
                threading.Timer(0.05, victim.kill).start()
        return True

    entries = bench(subject, ["onnxruntime"], pace, Watch(steady=steady))
    (lost,) = (one for one in entries if one.out)
    left = [one for one in entries if not one.out]
    assert "killed by SIGKILL" in lost.out
    assert [len(one.reports) for one in left] == [2, 2]
    assert contestants() == []
    (row,) = figures([lost], pace)
    assert row["out"] == lost.out


def contestants() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [one for one in children if any("runtimes.serve:" in word for word in one.cmdline())]


@pytest.mark.tvm
def test_whoevers_turn_it_is_not_stands_still(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, models.two_by_two(tmp_path / "model.onnx"))
    pace = dataclasses.replace(QUICK, processes=1, seconds=0.2, turn_s=0.02)
    seen: list[list[str]] = []

    def steady(limit_s: float) -> bool:
        seen.append([one.status() for one in contestants()])
        return True

    entries = bench(subject, ["onnxruntime"], pace, Watch(steady=steady))
    loading, timing = seen[:3], seen[3:]
    assert [len(one) for one in loading] == [0, 1, 2]
    assert timing == [[psutil.STATUS_STOPPED] * 3] * len(timing)
    turns = {len(one.reports[0].turns) for one in entries}
    assert turns == {len(timing) // 2}, "all took all; it is asked before and after each"
    assert 5 <= max(turns) <= 10
    assert contestants() == []


@pytest.mark.tvm
@pytest.mark.parametrize("near_s", [1e-12, 1.0])
def test_cores_that_are_never_near_are_timed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near_s: float
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "waited"))  # nobody else has waited
    subject = subject_of(tmp_path, models.cnn(tmp_path / "model.onnx"))
    once, started = dataclasses.replace(QUICK, processes=1), time.monotonic()
    entries = bench(subject, ["onnxruntime"], once, Watch(near_s=near_s))
    for one in entries:
        (report,) = one.reports
        assert sum(map(len, report.turns)) >= once.least
        assert (report.disturbed > 0) == (near_s < 1e-9 and len(os.sched_getaffinity(0)) > 1)
    if near_s < 1e-9 and len(os.sched_getaffinity(0)) > 1:
        assert time.monotonic() - started > NETWORK_S * len(entries), "each has waited"


@pytest.mark.tvm
def test_memory_is_the_processs_own(tmp_path: Path) -> None:
    """Not its parent's, whose peak a new process inherits in what `getrusage` tells."""
    ballast = np.ones(2**27)  # 1 GiB, touched
    subject = subject_of(tmp_path, models.two_by_two(tmp_path / "model.onnx"))
    entries = bench(subject, ["onnxruntime"], dataclasses.replace(QUICK, processes=1), Watch())
    assert ballast[-1] == 1
    for one in entries:
        assert 2**24 < one.reports[0].peak_bytes < 2**29


def entry(name: str, setting: str, seconds: float, error: float = 0.0, processes: int = 6) -> Entry:
    turns = ((seconds,), (seconds * 1.01, seconds), (seconds,))
    report = Report(0.1, 0.2, turns, 1, 2**27, error, error < 1e-3)
    return Entry(name, setting, {}, reports=(report,) * processes)


def test_who_is_far_slower_need_not_take_all_turns(tmp_path: Path) -> None:
    pace = Pace(seconds=2.0, least=5, turn_s=0.05)
    load = Load("tvm", "", subject_of(tmp_path, models.cnn(tmp_path / "m.onnx")), 0, tmp_path, 2.0)
    for seconds, due, goes_on in ((0.05, 40, 200), (1.0, 5, 10), (60.0, 1, 1)):
        one, taken = Contestant("", load, {}, 1.0), 0
        one._loaded = Loaded(0.1, seconds, 1, 0.0, True)
        ends = {}
        while one.goes_on(pace):
            if not one.is_due(pace):
                ends.setdefault("due", taken)
            one.count(Turn((seconds,), True, 1), steady=True)
            taken += 1
        assert ends.get("due", taken) == pytest.approx(due, abs=1)
        assert taken == pytest.approx(goes_on, abs=1)


@pytest.mark.parametrize(
    ("seconds", "turn_s", "wanted"), [(2.0, 0.05, 0.05), (0.02, 0.05, 0.02), (100.0, 0.001, 0.2)]
)
def test_a_turn_is_no_longer_than_all_and_they_are_not_too_many(
    seconds: float, turn_s: float, wanted: float
) -> None:
    assert Pace(seconds, 5, turn_s).of_a_turn == pytest.approx(wanted)
    assert seconds / Pace(seconds, 5, turn_s).of_a_turn <= MOST_TURNS


@pytest.mark.parametrize("is_long", [False, True])
def test_a_turn_begins_with_inferences_that_are_not_timed(is_long: bool) -> None:
    began, runs = time.perf_counter(), list[float]()

    def run(_: Any) -> list[Any]:
        runs.append(time.perf_counter())
        time.sleep(SETTLE_S / 4)
        return []

    turn = _Ready(run, {}, 1, is_long, while_near(0.0)).turn(2 * SETTLE_S)
    first = runs[len(runs) - len(turn.samples)]
    assert (first - began >= SETTLE_S) == (not is_long)
    assert sum(turn.samples) >= 2 * SETTLE_S


def test_the_best_setting_that_is_right_counts_and_ratios_are_to_ours() -> None:
    rows = figures(
        [
            entry("tunefarm", "default", 0.010),
            entry("onnxruntime", "spinning", 0.020),
            entry("onnxruntime", "sleeping", 0.030),
            entry("inductor", "default", 0.016),
            entry("inductor", "max-autotune", 0.012, error=0.1),
            entry("openvino", "pinned", 0.005, error=math.inf),
            Entry("iree", "", {}, out="skipped: not installed"),
        ],
        BenchProtocol(),
    )
    by_name = {row["runtime"]: row for row in rows}
    assert list(by_name) == ["tunefarm", "onnxruntime", "inductor", "openvino", "iree"]
    assert by_name["onnxruntime"]["setting"] == "spinning"
    assert by_name["onnxruntime"]["median_ms"] == pytest.approx(20.0)
    assert by_name["onnxruntime"]["ours_faster"]["speedup"] == pytest.approx(2.0)
    assert by_name["onnxruntime"]["ours_faster"]["ci95"] == pytest.approx([2.0, 2.0], rel=0.02)
    assert by_name["inductor"]["setting"] == "default"
    assert by_name["inductor"]["right"]
    assert not by_name["openvino"]["right"]
    assert by_name["openvino"]["max_rel_err"] is None
    assert not {"ours_faster"} & (set(by_name["openvino"]) | set(by_name["tunefarm"]))
    assert by_name["iree"] == {"runtime": "iree", "versions": {}, "out": "skipped: not installed"}


def test_what_slows_all_alike_is_in_no_ratio() -> None:
    rng = np.random.default_rng(0)
    slow = [rng.choice([1.0, 1.7], size=14) * rng.uniform(1, 1.5) for _ in range(6)]
    ours, other = (
        Entry(name, "default", {}, reports=tuple(_reported(base * factors) for factors in slow))
        for name, base in (("tunefarm", 0.010), ("onnxruntime", 0.012))
    )
    mine, row = figures([ours, other], BenchProtocol())
    assert mine["ci95_ms"][1] > 1.2 * mine["ci95_ms"][0]
    assert row["ours_faster"]["ci95"] == pytest.approx([1.2, 1.2])
    assert row["ours_faster"]["speedup"] == pytest.approx(1.2)


def test_turns_that_one_had_alone_are_not_compared() -> None:
    ours = Entry("tunefarm", "", {}, reports=(_reported([0.01, 0.01]),) * 6)
    other = Entry("tvm", "", {}, reports=(_reported([0.02, 0.02, 9.0, 9.0, 9.0]),) * 6)
    _, row = figures([ours, other], BenchProtocol())
    assert row["ours_faster"] == {"speedup": pytest.approx(2), "ci95": pytest.approx([2, 2])}


def test_a_quantile_needs_samples_beyond_it_of_several_turns_that_are_single_inferences() -> None:
    turn = tuple(place / 1000 for place in range(100))
    one = Report(0.1, 0.2, (turn,) * 10, 1, 2**27, 0.0, True)
    p90, p99 = pytest.approx(89.1, abs=0.2), pytest.approx(98.01, abs=0.2)
    for reports, wanted in (
        ([one], (p90, p99)),
        ([dataclasses.replace(one, turns=(turn,) * 9)], (None, None)),
        ([dataclasses.replace(one, turns=(turn[1::2],) * 19)], (p90, None)),
        ([dataclasses.replace(one, calls=2)], (None, None)),
        ([dataclasses.replace(one, turns=(turn * 10,))], (None, None)),
    ):
        (row,) = figures([Entry("tvm", "", {}, reports=tuple(reports))], BenchProtocol())
        assert (row["p90_ms"], row["p99_ms"]) == wanted


def _reported(turns: Any) -> Report:
    """One sample a turn."""
    return Report(0.1, 0.2, tuple((float(s),) for s in turns), 1, 2**27, 0.0, True)


def test_nothing_is_faster_than_a_wrong_result_and_few_processes_give_no_interval() -> None:
    wrong = [entry("tunefarm", "default", 0.010, error=5.0), entry("onnxruntime", "spinning", 0.02)]
    assert not any("ours_faster" in row for row in figures(wrong, BenchProtocol()))
    few = [entry("tunefarm", "", 0.010, processes=2), entry("tvm", "", 0.02, processes=2)]
    ours, tvm = figures(few, BenchProtocol())
    assert ours["ci95_ms"] is None
    assert tvm["ours_faster"] == {"speedup": pytest.approx(2.0), "ci95": None}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what MLflow asks of its own libraries
def test_what_is_wrong_is_shown_as_wrong_and_has_no_times_in_mlflow(
    home: Home, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    entries = [
        entry("tunefarm", "default", 0.010),
        entry("iree", "3", 0.005, error=5.0),
        entry("onnxruntime", "pinned", 0.020),
    ]
    rows = figures(entries, BenchProtocol())
    figure = plots.runtimes(rows, "net")
    (axes,) = figure.axes
    names = [label.get_text().split()[0] for label in axes.get_yticklabels()]
    assert names == ["iree", "onnxruntime", "tunefarm"], "from below: the fastest right one on top"
    said = [text.get_text() for text in axes.texts]
    assert ["WRONG" in text for text in said] == [True, False, False]
    (tmp_path / bench_record.RAW).write_text("{}")
    document = {"model": "net", "threads": 2, "machine": {"cpu": "paper"}, "runtimes": rows}
    run = bench_record._track(home, tmp_path, document, figure)
    metrics = MlflowClient(tracking_uri=home.mlflow_uri).get_run(run).data.metrics
    assert "tunefarm.median_ms" in metrics
    assert {key for key in metrics if key.startswith("iree.")} == {"iree.max_rel_err"}


@pytest.mark.tvm
@pytest.mark.skipif(cpu.usable_cores() < 2, reason="one core has no thread to bind elsewhere")
def test_onnx_runtimes_threads_are_bound_where_it_says_so(tmp_path: Path) -> None:
    code = f"""
import os
import time
from pathlib import Path
from tests import models
from tests.results.test_bench import subject_of
from tunefarm.measure.pinning import _bound
from tunefarm.results.runtimes import runtime
place = Path({str(tmp_path)!r})
subject = subject_of(place, models.two_by_two(place / "model.onnx"))
for setting in ("spinning", "pinned"):
    run = runtime("onnxruntime").load(subject, setting)
    own = os.sched_getaffinity(0)
    # a thread binds itself, once it runs: on a busy machine that is after the session is made
    until = time.monotonic() + (20 if setting == "pinned" else 0.5)
    while not _bound() - own and time.monotonic() < until:
        time.sleep(0.01)
    print(len(own) == 1, bool(_bound() - own))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True", "True"]


def test_the_command_offers_every_runtime() -> None:
    assert ALL.split(",") == list(RUNTIMES)


def document(model: str, **medians: float) -> dict[str, Any]:
    """As if every ratio were a tenth more than that of the medians."""
    rows = [{"runtime": n, "median_ms": ms} for n, ms in medians.items()]
    for row in rows:
        if row["runtime"] != "tunefarm" and "tunefarm" in medians:
            row["ours_faster"] = {"speedup": 1.1 * row["median_ms"] / medians["tunefarm"]}
    return {"model": model, "runtimes": [*rows, {"runtime": "xla", "out": "skipped: none"}]}


def test_ours_is_compared_with_the_best_other_of_each_model() -> None:
    wrong = document("wrong", tunefarm=1.0, openvino=4.0)
    del wrong["runtimes"][1]["ours_faster"]
    found = summarised(
        [
            document("a", tunefarm=2.0, onnxruntime=4.0, openvino=3.0),
            document("b", tunefarm=6.0, onnxruntime=4.0, openvino=9.0),
            document("c", onnxruntime=4.0),
            wrong,
        ]
    )
    assert [one["best"] for one in found["models"]] == ["openvino", "onnxruntime", None, None]
    assert found["geometric_mean"] == pytest.approx(1.1 * (1.5 * 4 / 6) ** 0.5)
    assert (found["counted"], found["won"]) == (2, 1)
    assert summarised([document("d", onnxruntime=1.0)])["geometric_mean"] is None
