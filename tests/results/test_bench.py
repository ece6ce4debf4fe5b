"""Runtimes side by side: the adapters' conformance suite, and what is made of their reports."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests import models
from tunefarm.errors import JobFailed, UsageError
from tunefarm.frontend.onnx_file import ImportLimits, input_specs, read_model
from tunefarm.results.bench import BenchProtocol, Entry, bench, figures
from tunefarm.results.runtimes import RUNTIMES, runtime
from tunefarm.results.runtimes.contract import Subject
from tunefarm.results.runtimes.serve import Report

QUICK = BenchProtocol(processes=2, seconds=0.02, least=3)


def subject_of(directory: Path, model: Path) -> Subject:
    loaded = read_model(model, ImportLimits())
    outputs = tuple(output.name for output in loaded.graph.output)
    return Subject(model, input_specs(loaded), outputs, 2, directory / "bench")


@pytest.mark.tvm
@pytest.mark.parametrize("name", sorted(set(RUNTIMES) - {"tunefarm"}))
def test_every_adapter_computes_the_model_or_says_why_not(name: str, tmp_path: Path) -> None:
    """Two inputs and several outputs, so that their order matters."""
    subject = subject_of(tmp_path, models.two_by_two(tmp_path / "model.onnx"))
    entries = bench(subject, [name], QUICK, lambda _: None)
    missing = runtime(name).missing(subject)
    if missing:
        (entry,) = entries
        assert entry.out == f"skipped: {missing}"
        assert "pip install" in entry.out
        return
    assert [one.setting for one in entries] == list(runtime(name).settings)
    for one in entries:
        assert not one.out
        assert one.max_rel_err < 1e-3
        assert one.versions
        assert len(one.reports) == QUICK.processes
        for report in one.reports:
            assert len(report.samples) >= QUICK.least
            assert min(report.samples) > 0
            assert report.load_s > 0 < report.first_s
            assert 2**20 < report.peak_bytes < 2**33


@pytest.mark.tvm
def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, models.two_by_two(tmp_path / "model.onnx"))
    nothing = dataclasses.replace(subject, artifact=tmp_path / "nothing.tfa")
    (entry,) = bench(nothing, ["tunefarm"], QUICK, lambda _: None)
    assert "there is no artifact" in entry.out
    assert figures([entry], QUICK) == [
        {"runtime": "tunefarm", "versions": entry.versions, "out": entry.out}
    ]
    with pytest.raises(UsageError, match="no runtime 'caffe'"):
        runtime("caffe")
    (tmp_path / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(JobFailed, match="cannot run it"):
        bench(subject, ["onnxruntime"], QUICK, lambda _: None)


def entry(name: str, setting: str, *processes: tuple[float, ...], error: float = 0.0) -> Entry:
    reports = tuple(Report(0.1, 0.2, samples, 2**27, error) for samples in processes)
    return Entry(name, setting, {}, reports=reports)


def test_the_best_setting_counts_and_ratios_are_to_ours() -> None:
    rows = figures(
        [
            entry("tunefarm", "default", *[(0.010, 0.011, 0.010)] * 6),
            entry("onnxruntime", "spinning", *[(0.020, 0.021, 0.020)] * 6),
            entry("onnxruntime", "sleeping", *[(0.030, 0.031, 0.030)] * 6),
            entry("openvino", "pinned", *[(0.005, 0.005, 0.005)] * 6, error=0.1),
            Entry("iree", "", {}, out="skipped: not installed"),
        ],
        BenchProtocol(),
    )
    by_name = {row["runtime"]: row for row in rows}
    assert list(by_name) == ["tunefarm", "onnxruntime", "openvino", "iree"]
    assert by_name["onnxruntime"]["setting"] == "spinning"
    assert by_name["onnxruntime"]["median_ms"] == pytest.approx(20.0)
    assert by_name["onnxruntime"]["ours_faster"][0] == pytest.approx(2.0)
    assert "ours_faster" not in by_name["tunefarm"]
    assert not by_name["openvino"]["right"]
    assert by_name["onnxruntime"]["right"]
    assert by_name["iree"] == {"runtime": "iree", "versions": {}, "out": "skipped: not installed"}
