"""Runtimes side by side: the adapters' conformance suite, and what is made of their reports."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests import models
from tunefarm.cli.bench import ALL
from tunefarm.errors import JobFailed, UsageError
from tunefarm.frontend.half import narrowed
from tunefarm.frontend.onnx_file import ImportLimits, input_specs, read_model
from tunefarm.measure.steady import NETWORK_S
from tunefarm.results.bench import BenchProtocol, Entry, Watch, bench
from tunefarm.results.bench_figures import figures, summarised
from tunefarm.results.runtimes import RUNTIMES, runtime
from tunefarm.results.runtimes.contract import Subject
from tunefarm.results.runtimes.serve import Report

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
            assert len(report.samples) >= QUICK.least
            assert min(report.samples) > 0
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


@pytest.mark.tvm
def test_what_was_disturbed_is_measured_once_more_and_marked(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, models.two_by_two(tmp_path / "model.onnx"))
    one = dataclasses.replace(QUICK, processes=1)
    asked = iter([True, False, True, True, False, False])  # spinning: again; sleeping: in vain
    entries = bench(subject, ["onnxruntime"], one, Watch(steady=lambda: next(asked, False)))
    assert sorted(report.steady for entry in entries for report in entry.reports) == [False, True]


@pytest.mark.tvm
@pytest.mark.parametrize("near_s", [1e-12, 1.0])
def test_cores_that_are_never_near_are_timed_all_the_same(tmp_path: Path, near_s: float) -> None:
    subject = subject_of(tmp_path, models.cnn(tmp_path / "model.onnx"))
    once, started = dataclasses.replace(QUICK, processes=1), time.monotonic()
    entries = bench(subject, ["onnxruntime"], once, Watch(near_s=near_s))
    for one in entries:
        assert [len(report.samples) >= once.least for report in one.reports] == [True]
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
    samples = (seconds, seconds * 1.01, seconds)
    report = Report(0.1, 0.2, samples, 1, 2**27, error, error < 1e-3)
    return Entry(name, setting, {}, reports=(report,) * processes)


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


def test_nothing_is_faster_than_a_wrong_result_and_few_processes_give_no_interval() -> None:
    wrong = [entry("tunefarm", "default", 0.010, error=5.0), entry("onnxruntime", "spinning", 0.02)]
    assert not any("ours_faster" in row for row in figures(wrong, BenchProtocol()))
    few = [entry("tunefarm", "", 0.010, processes=2), entry("tvm", "", 0.02, processes=2)]
    ours, tvm = figures(few, BenchProtocol())
    assert ours["ci95_ms"] is None
    assert tvm["ours_faster"] == {"speedup": pytest.approx(2.0), "ci95": None}


def test_the_command_offers_every_runtime() -> None:
    assert ALL.split(",") == list(RUNTIMES)


def document(model: str, **medians: float) -> dict[str, Any]:
    rows = [{"runtime": n, "median_ms": ms, "right": True} for n, ms in medians.items()]
    return {"model": model, "runtimes": [*rows, {"runtime": "xla", "out": "skipped: none"}]}


def test_ours_is_compared_with_the_best_other_of_each_model() -> None:
    wrong = document("wrong", tunefarm=1.0, openvino=4.0)
    wrong["runtimes"][1]["right"] = False
    found = summarised(
        [
            document("a", tunefarm=2.0, onnxruntime=4.0, openvino=3.0),
            document("b", tunefarm=6.0, onnxruntime=4.0, openvino=9.0),
            document("c", onnxruntime=4.0),
            wrong,
        ]
    )
    assert [one["best"] for one in found["models"]] == ["openvino", "onnxruntime", None, None]
    assert found["geometric_mean"] == pytest.approx((1.5 * 4 / 6) ** 0.5)
    assert (found["counted"], found["won"]) == (2, 1)
    assert summarised([document("d", onnxruntime=1.0)])["geometric_mean"] is None
