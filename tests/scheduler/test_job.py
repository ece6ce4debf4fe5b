"""Whole jobs through the command line: real Ray, real MLflow, real faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests import models
from tests.bench import needs
from tests.command import tunefarm
from tests.float_network import network as float_network
from tests.frontend.test_relax_attention import network as attention_network
from tests.jobs import left_over
from tests.mlflow_server import MlflowServer
from tests.quantised_models import network as quantised_network
from tunefarm.costmodel.transfer import load_transfer
from tunefarm.devices.cpu import cpu_features
from tunefarm.frontend.dtypes import numpy_dtype, rounding
from tunefarm.frontend.onnx.half import narrowed
from tunefarm.frontend.onnx.passes import Graph
from tunefarm.measure.expected import WITHOUT_OVERFLOW
from tunefarm.measure.gate import parity
from tunefarm.results.artifact_file import open_artifact
from tunefarm.results.journal import Journal
from tunefarm.results.lessons import home_lessons
from tunefarm.search.candidate import MATRIX_ATTENTION

pytestmark = pytest.mark.ray


def test_json_is_the_contract(farm: dict[str, Any]) -> None:
    found = farm["done"].json
    assert set(found) == {"job", "status", "name", "targets", "mlflow"}
    assert found["status"] == "succeeded"
    row = found["targets"]["llvm"]
    assert set(row) == {
        *("artifact", "digest", "tasks", "candidates", "failures", "baseline_ms", "tuned_ms"),
        *("speedup", "speedup_ci95", "verdict", "service", "previous", "parity", "wall_s"),
        "why_untuned",
    }
    assert row["why_untuned"] == "", "what was tuned ships"
    assert row["candidates"] == 30
    assert row["verdict"] == "FASTER"
    assert row["speedup_ci95"][0] <= row["speedup"] <= row["speedup_ci95"][1]
    assert row["baseline_ms"] / row["tuned_ms"] == pytest.approx(row["speedup"], rel=1e-2)
    assert row["parity"]["passed"]
    assert row["parity"]["max_rel_err"] < 1e-3
    had = row["service"]
    assert min(had["first_ms"], had["load_ms"]) > 0
    assert had["peak_mb"] > 20
    assert had["p99_ms"] >= had["p90_ms"] > 0, "a small model: a thousand inferences take no time"
    assert row["previous"] is None
    assert "tuning" in farm["done"].err


def test_every_command_agrees_about_the_job(farm: dict[str, Any]) -> None:
    env, job = farm["env"], farm["done"].json["job"]
    (row,) = tunefarm("jobs", "--json", **env).json["jobs"]
    assert (row["job"], row["status"], row["candidates"]) == (job, "succeeded", 30)
    status = tunefarm("status", job, "--json", **env).json
    assert status["counts"]["measured"] == 30
    assert status["phase"] == "done"
    assert tunefarm("watch", "cnn", **env).code == 0
    assert "tuning" in tunefarm("logs", job, **env).out
    assert tunefarm("cancel", job, **env).code == 5
    assert tunefarm("resume", job, **env).code == 5
    assert tunefarm("status", job, **env).code == 0


def test_the_model_runs_beside_other_runtimes(farm: dict[str, Any]) -> None:
    done = tunefarm(
        *("bench", farm["model"], "--runtimes", "tunefarm,onnxruntime"),
        *("--processes", 2, "--seconds", 0.05, "--json"),
        **farm["env"],
    )
    assert done.code == 0, done.err
    found = done.json
    rows = {row["runtime"]: row for row in found["runtimes"]}
    assert list(rows) == ["tunefarm", "onnxruntime"]
    assert all(row["right"] and row["median_ms"] > 0 for row in rows.values())
    assert rows["onnxruntime"]["ours_faster"]["speedup"] > 0
    assert rows["onnxruntime"]["ours_faster"]["ci95"] is None, "two processes give no interval"
    assert rows["tunefarm"]["compile_s"] > 1, "what the search took"
    assert len(json.loads((Path(found["directory"]) / "raw.json").read_text())["raw"]) == 4
    assert found["artifact"] == farm["done"].json["targets"]["llvm"]["artifact"]
    assert len(found["mlflow"]) == 32, found["mlflow"]
    assert json.loads((Path(found["directory"]) / "bench.json").read_text()) == found
    assert (Path(found["directory"]) / "bench.png").stat().st_size > 5000
    assert tunefarm("bench", farm["model"], "--runtimes", "caffe", **farm["env"]).code == 2


def test_the_journal_has_every_sample(farm: dict[str, Any]) -> None:
    journal, job = Journal(farm["home"]), farm["done"].json["job"]
    screened = journal.measurements(job, "llvm", ("screen",))
    assert len(screened) == 30
    assert all(m.samples and min(m.samples) > 0 for m in screened)
    tasks = journal.tasks(job, "llvm")
    assert len(journal.measurements(job, "llvm", ("baseline",))) == len(tasks)
    verdicts = journal.verdicts(job, "llvm")
    assert set(verdicts) == {t["task"] for t in tasks} | {"model"}
    assert len({m.process for m in journal.measurements(job, "llvm", ("model",))}) == 6
    assert journal.blocks(job, "llvm")
    journal.close()


def test_every_phase_left_its_processes(farm: dict[str, Any]) -> None:
    job, home = farm["done"].json["job"], farm["home"]
    journal = Journal(home)
    phases = Counter(row["phase"] for row in journal.processes(job, "llvm"))
    journal.close()
    assert phases == {"race": 2, "place": 3, "final": 6, "compare": 6, "check": 1}
    assert not list((home.job_dir(job) / "llvm" / "model").glob("variant*"))


def test_the_artifact_is_whole_and_runs(farm: dict[str, Any]) -> None:
    env, row = farm["env"], farm["done"].json["targets"]["llvm"]
    path = row["artifact"]
    verified = tunefarm("artifacts", "verify", path, "--json", **env).json
    assert verified["digest"] == row["digest"]
    expected = {"lib/model.so", "lib/model.weights", "schedules.json", "sbom.cdx.json"}
    assert expected <= set(verified["verified"])
    manifest = tunefarm("artifacts", "inspect", path, "--json", **env).json
    assert manifest["complete"]
    assert manifest["target"]["kind"] == "llvm"
    said = tunefarm("artifacts", "inspect", path, **env).out
    assert "can run it" in said
    assert "against ONNX Runtime" in said
    assert "{" not in said, "words, not a program's own"
    placed = json.loads(open_artifact(Path(path)).read("evidence/in_place.json"))
    names = {kernel["workload"]: kernel["name"] for kernel in manifest["kernels"]}
    assert set(placed["kernels"]) <= set(names)
    missing = set(names) - set(placed["kernels"])
    assert all("reshape" in names[one] for one in missing), "only these the runtime does itself"
    assert min(placed["kernels"].values()) >= 0
    assert 0 < sum(placed["kernels"].values()) < 10 * placed["model_s"]
    assert 0 <= placed["outside"] < 1
    inputs, outputs = farm["root"] / "x.npz", farm["root"] / "y.npz"
    x = np.random.default_rng(3).normal(size=(1, 16, 32, 32)).astype(np.float32)
    np.savez(inputs, x=x)
    ran = tunefarm(
        "artifacts", "run", path, "--inputs", inputs, "--outputs", outputs, "--json", **env
    )
    assert ran.code == 0, ran.err
    assert {"load_ms", "first_request_ms", "warm_up_ms", "median_ms"} == set(ran.json["timings"])
    import onnxruntime

    want = onnxruntime.InferenceSession(str(farm["model"])).run(None, {"x": x})[0]
    np.testing.assert_allclose(np.load(outputs)["y"], want, rtol=1e-4, atol=1e-6)


LOAD = """
import sys, numpy as np, tunefarm
model = tunefarm.load(sys.argv[1])
x = np.ones((1, 16, 32, 32), np.float32)
first = model({"x": x}); second = model({"x": x})
assert first["y"].shape == (1, 10) and (first["y"] == second["y"]).all()
assert set(model.timings) == {"load", "first_request", "warm_up"}
maps = open("/proc/self/maps").read()
assert "libtvm_runtime" in maps and "libtvm_compiler" not in maps, "the compiler was loaded"
heavy = [m for m in ("ray", "mlflow", "optuna", "xgboost", "pandas", "onnx") if m in sys.modules]
assert not heavy, heavy
for bad in ({}, {"z": x}, {"x": x[0]}, {"x": x.astype("float64")}):
    try: model(bad)
    except tunefarm.errors.UsageError: continue
    raise SystemExit(f"taken: {bad.keys()}")
print("ok")
"""


def test_load_needs_the_runtime_alone(farm: dict[str, Any]) -> None:
    path = farm["done"].json["targets"]["llvm"]["artifact"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("TVM")}
    code = "import tunefarm.errors\n" + LOAD
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        capture_output=True,
        text=True,
        env={**env, **farm["env"]},
    )
    assert done.stdout.strip() == "ok", done.stderr


def test_a_tampered_or_foreign_artifact_is_refused(farm: dict[str, Any], tmp_path: Path) -> None:
    import zipfile

    env = farm["env"]
    with zipfile.ZipFile(farm["done"].json["targets"]["llvm"]["artifact"]) as archive:
        archive.extractall(tmp_path / "a")
    for name in ("model.weights", "model.so"):
        part = tmp_path / "a" / "lib" / name
        sound = part.read_bytes()
        data = bytearray(sound)
        data[len(data) // 2] ^= 1
        part.write_bytes(data)
        for command in ("verify", "run"):
            done = tunefarm("artifacts", command, tmp_path / "a", **env)
            assert done.code == 6
            assert "digest" in done.err
        part.write_bytes(sound)
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    manifest["requires"]["cpu_features"] = ["avx9000"]
    (tmp_path / "a" / "manifest.json").write_text(json.dumps(manifest))
    done = tunefarm("artifacts", "run", tmp_path / "a", **env)
    assert done.code == 6
    assert "avx9000" in done.err


def test_mlflow_has_runs_curves_tables_plots_and_a_version(
    farm: dict[str, Any], tmp_path: Path
) -> None:
    code = """
import json, sys
from mlflow import MlflowClient
uri, parent = sys.argv[1:]
client = MlflowClient(tracking_uri=uri, registry_uri=uri)
run = client.get_run(parent)
(child,) = client.search_runs([run.info.experiment_id], f"tags.mlflow.parentRunId = '{parent}'")
curve = client.get_metric_history(child.info.run_id, "best_latency_ms")
places = ("", "plots", "artifact")
names = [a.path for p in places for a in client.list_artifacts(child.info.run_id, p)]
version = client.get_model_version_by_alias("cnn", "llvm")
print(json.dumps({
    "status": [run.info.status, child.info.status], "points": [(m.step, m.value) for m in curve],
    "names": names, "params": child.data.params, "metrics": child.data.metrics,
    "digest": version.tags["tunefarm.digest"], "inputs": len(run.inputs.dataset_inputs),
    "parent": [a.path for a in client.list_artifacts(parent)],
}))
"""
    found = farm["done"].json
    done = subprocess.run(
        [sys.executable, "-c", code, found["mlflow"]["tracking_uri"], found["mlflow"]["run_id"]],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["status"] == ["FINISHED", "FINISHED"]
    assert [step for step, _ in seen["points"]] == list(range(1, 31))
    values = [value for _, value in seen["points"]]
    assert values == sorted(values, reverse=True)
    assert {"kernels.json", "candidates.json", "plots/best_latency.png"} <= set(seen["names"])
    assert {"plots/kernel_speedups.png", "plots/model_samples.png"} <= set(seen["names"])
    assert any(name.endswith(".tfa") for name in seen["names"])
    assert {"report.html", "environment.json", "protocol.json"} <= set(seen["parent"])
    assert seen["digest"] == found["targets"]["llvm"]["digest"]
    assert seen["metrics"]["speedup"] == pytest.approx(found["targets"]["llvm"]["speedup"])
    assert seen["inputs"] == 1
    assert seen["params"]["strategy"] == "portfolio", "children can be compared by parameters"
    assert seen["params"]["trials"] == "30"
    pulled = tunefarm("artifacts", "pull", "cnn@llvm", "-o", tmp_path, "--json", **farm["env"])
    assert pulled.json["digest"] == seen["digest"]
    assert Path(pulled.json["path"]).exists()
    assert tunefarm("artifacts", "pull", "cnn@cuda", **farm["env"]).code != 0


def test_a_job_leaves_lessons_a_cost_model_and_a_roof(farm: dict[str, Any]) -> None:
    home, env = farm["home"], farm["env"]
    lessons = home_lessons(home)
    assert len(lessons) == 30 + sum(farm["done"].json["targets"]["llvm"]["failures"].values())
    assert {one.network for one in lessons} == {Journal(home).jobs()[-1].model_digest}
    assert "register-tile" in {one.family for one in lessons}
    assert load_transfer(home.costmodel).about["lessons"] == len(lessons)
    assert "cost model trained on" in farm["done"].err
    exported = farm["root"] / "lessons.parquet"
    assert tunefarm("costmodel", "export", exported, "--json", **env).json["lessons"] == len(
        lessons
    )
    assert "GFLOP/s" in farm["done"].err
    (device,) = tunefarm("devices", "list", "--json", **env).json["devices"]
    assert device["roof"]["flops"] > 1e9


@pytest.fixture(scope="module")
def again(farm: dict[str, Any]) -> dict[str, Any]:
    """The same model once more, in the background, for two targets of which one has no device, with
    a cost model that cannot be read and an MLflow that is down."""
    farm["home"].costmodel.write_text("{}")
    server = MlflowServer(farm["root"])
    submitted = tunefarm(
        *("submit", farm["model"], "--targets", "cuda,llvm", "--no-device", "skip"),
        *("--trials", 30, "--tracking-uri", server.uri, "--detach", "--json"),
        **farm["env"],
    )
    assert submitted.code == 0, submitted.err
    job = submitted.json["job"]
    watched = tunefarm("watch", job, "--json", **farm["env"])
    assert watched.code == 0, watched.err
    return {"job": job, "submitted": submitted.json, "watched": watched.json, "mlflow": server}


@pytest.mark.long
def test_a_detached_job_is_watched(again: dict[str, Any]) -> None:
    assert again["submitted"]["status"] == "queued"
    assert again["watched"]["status"] == "succeeded"
    assert "no registered device" in again["watched"]["targets"]["cuda"]["skipped"]


@pytest.mark.long
def test_what_is_known_is_not_tuned_again(farm: dict[str, Any], again: dict[str, Any]) -> None:
    """The earlier job's results are its trials, and it ships as well. That the cost model cannot be
    read is said, and stops nothing."""
    log = tunefarm("logs", again["job"], **farm["env"]).out
    assert "are known from earlier jobs" in log
    assert "cost model" in log
    assert "going on without it" in log
    row = again["watched"]["targets"]["llvm"]
    assert row["candidates"] < 10, "what failed before may be tried again, what was measured not"
    assert row["verdict"] == "FASTER"
    journal = Journal(farm["home"])
    won = {row["winner"] for row in journal.verdicts(again["job"], "llvm").values()}
    earlier = {m.candidate for m in journal.measurements(farm["done"].json["job"], "llvm")}
    journal.close()
    assert won & earlier, "what ships was found by the earlier job"
    before = row["previous"]
    assert before["digest"] == farm["done"].json["targets"]["llvm"]["digest"], "of its name"
    assert before["speedup"] is not None or before["verdict"] == "SAME"
    assert f"what shipped before, {before['digest'][:12]}" in log


@pytest.mark.long
def test_what_two_jobs_made_is_compared(farm: dict[str, Any], again: dict[str, Any]) -> None:
    jobs = (farm["done"].json["job"], again["job"])
    compare = ("compare", *jobs, "--processes", 2, "--seconds", 0.05)
    found = tunefarm(*compare, "--json", **farm["env"]).json
    made = [one["targets"]["llvm"]["digest"] for one in (farm["done"].json, again["watched"])]
    assert [found[side]["digest"] for side in ("first", "second")] == made
    assert 0.1 < found["speedup"] < 10
    assert found["verdict"] is None, "two processes give no interval"
    assert found["apart"] < 1e-4
    kernels = open_artifact(Path(found["first"]["artifact"])).manifest["kernels"]
    assert sorted(row["kernel"] for row in found["kernels"]) == sorted(k["name"] for k in kernels)
    assert {row["schedule"] for row in found["kernels"]} <= {"same", "other"}
    said = tunefarm("compare", jobs[0], found["first"]["artifact"], *compare[3:], **farm["env"])
    assert "same schedule for every kernel" in said.out
    assert tunefarm(*compare, "--target", "cuda", **farm["env"]).code == 2


@pytest.mark.long
def test_mlflow_down_stops_nothing_and_catches_up_later(
    farm: dict[str, Any], again: dict[str, Any], tmp_path: Path
) -> None:
    env, server = farm["env"], again["mlflow"]
    assert again["watched"]["mlflow"]["run_id"] is None
    failed = tunefarm("sync", "--json", **env)
    assert failed.code == 5
    assert again["job"] in failed.json["jobs"], "one document, with the reason"
    try:
        server.start()
        for _ in range(2):  # the second finds everything there
            synced = tunefarm("sync", "--json", **env)
            assert synced.code == 0, synced.err
            assert synced.json["jobs"][again["job"]] == "", "nothing is missing"
        status = tunefarm("status", again["job"], "--json", **env).json
        assert status["mlflow"]["run_id"]
        where = ("--tracking-uri", server.uri, "-o", tmp_path)
        pulled = tunefarm("artifacts", "pull", "cnn@llvm", *where, "--json", **env)
        assert pulled.code == 0, pulled.err
        assert pulled.json["digest"] == again["watched"]["targets"]["llvm"]["digest"]
    finally:
        server.kill()


def test_nothing_is_left_running(farm: dict[str, Any]) -> None:
    assert left_over(str(farm["home"].root)) == []


@pytest.mark.long
def test_planted_faults_are_recorded_and_the_job_finishes(
    farm: dict[str, Any], tmp_path: Path
) -> None:
    done = tunefarm(
        *("submit", models.matmul(tmp_path / "mm.onnx"), "--targets", "llvm", "--json"),
        *("--trials", 12, "--strategy", "random"),
        TUNEFARM_PLUGINS="tests.plugins.faults",
        **farm["env"],
    )
    assert done.code == 0, done.err
    row = done.json["targets"]["llvm"]
    assert set(row["failures"]) == {"crash", "run_timeout", "wrong_result", "out_of_memory"}
    assert all(count == 1 for count in row["failures"].values())
    assert row["candidates"] == 12
    assert row["parity"]["passed"]
    assert left_over(str(farm["home"].root)) == []


@pytest.mark.long
def test_a_budget_ends_a_job_that_begins_with_a_large_table(
    farm: dict[str, Any], tmp_path: Path
) -> None:
    """Of the table few rows are read, faster than all of it could be."""
    done = tunefarm(
        *("submit", models.embedded(tmp_path / "m.onnx"), "--targets", "llvm", "--json"),
        *("--trials", 5000, "--budget", "1m"),
        **farm["env"],
    )
    assert done.code == 0, done.err
    row = done.json["targets"]["llvm"]
    assert 0 < row["candidates"] < 5000
    assert row["failures"] == {}
    assert row["parity"]["passed"]
    assert "the latest third" not in done.err, "it would have ended without a budget"


def _faster(farm: dict[str, Any], model: Path, trials: int, target: str = "llvm") -> dict[str, Any]:
    """What a job on `model` says, which has no failure, and is right and faster."""
    submit = ("submit", model, "--targets", target, "--trials", trials, "--json")
    done = tunefarm(*submit, **farm["env"])
    assert done.code == 0, done.err
    row: dict[str, Any] = done.json["targets"][target]
    assert row["verdict"] == "FASTER"
    assert row["failures"] == {}
    assert row["parity"]["passed"]
    return row


@pytest.mark.long
def test_a_model_in_half_precision(farm: dict[str, Any], tmp_path: Path) -> None:
    """Of a type that NumPy has not: in, out, and through every file between."""
    model = tmp_path / "half.onnx"
    onnx.save(narrowed(onnx.load(models.vector_dense(tmp_path / "m.onnx", 256)), "bfloat16"), model)
    row = _faster(farm, model, trials=8)
    assert row["parity"]["max_rel_err"] <= rounding("bfloat16")
    given, made = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(given, x=np.ones((1, 256), numpy_dtype("bfloat16")))
    ran = tunefarm(
        *("artifacts", "run", row["artifact"], "--inputs", given, "--outputs", made, "--json"),
        **farm["env"],
    )
    assert ran.code == 0, ran.err
    with np.load(made) as outputs:
        assert outputs["y"].dtype == np.float32
        (weights,) = Graph(onnx.load(model)).constants.values()
        sums = weights.astype(np.float32).sum(axis=0, keepdims=True)
        np.testing.assert_allclose(outputs["y"], sums, rtol=rounding("bfloat16"), atol=1e-3)


@pytest.mark.long
def test_a_model_whose_factors_may_be_rounded(farm: dict[str, Any], tmp_path: Path) -> None:
    """Where a processor multiplies them; where it does not, that is said."""
    model, target = float_network(tmp_path / "m.onnx"), "llvm:precision=bfloat16"
    if "avx512_bf16" not in cpu_features():
        refused = tunefarm("submit", model, "--targets", target, "--json", **farm["env"])
        assert refused.code == 4
        assert "does not multiply bfloat16" in refused.err
        return
    row = _faster(farm, model, 16, target)
    assert 1e-6 < row["parity"]["max_rel_err"] < 16 * rounding("bfloat16")
    seen = tunefarm("artifacts", "inspect", row["artifact"], "--json", **farm["env"])
    assert seen.json["computed_in"] == "bfloat16"
    needed = set(seen.json["requires"]["cpu_features"])
    assert "avx512_bf16" in needed
    if "amx_bf16" in cpu_features():
        assert {"amx_bf16", "amx_int8", "amx_tile"} <= needed


@pytest.mark.long
def test_a_transformer_whose_factors_may_be_rounded(farm: dict[str, Any], tmp_path: Path) -> None:
    """Its attention is one kernel, in matrix registers, and right in the whole."""
    needs("amx_bf16")
    model = tmp_path / "m.onnx"
    model.write_bytes(attention_network("masked").SerializeToString())
    row = _faster(farm, model, 12, "llvm:precision=bfloat16")
    assert 1e-6 < row["parity"]["max_rel_err"] < 16 * rounding("bfloat16")
    with zipfile.ZipFile(row["artifact"]) as artifact:
        kernels = json.loads(artifact.read("schedules.json"))["kernels"].values()
    (trace,) = (one["trace"] for one in kernels if one["name"] == "attention")
    assert MATRIX_ATTENTION in json.dumps(trace)


@pytest.mark.long
def test_a_quantised_model(farm: dict[str, Any], tmp_path: Path) -> None:
    """Products of integers where the processor has an instruction for them, or else of floats."""
    model = quantised_network(tmp_path / "quantised.onnx", "int8")
    row = _faster(farm, model, trials=16)
    seen = tunefarm("artifacts", "inspect", row["artifact"], "--json", **farm["env"])
    assert seen.json["computed_in"] == "int8"
    given, made = tmp_path / "in.npz", tmp_path / "out.npz"
    x = np.random.default_rng(3).uniform(-1, 1, (1, 3, 14, 14)).astype(np.float32)
    np.savez(given, x=x)
    ran = tunefarm(
        *("artifacts", "run", row["artifact"], "--inputs", given, "--outputs", made, "--json"),
        **farm["env"],
    )
    assert ran.code == 0, ran.err
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*WITHOUT_OVERFLOW)
    (want,) = onnxruntime.InferenceSession(model, options).run(None, {"x": x})
    with np.load(made) as outputs:
        assert parity([outputs["y"]], [want], "int8").passed
