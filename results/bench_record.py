"""A benchmark's figures, raw samples and plot: as files, and as a run in MLflow."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tunefarm.devices import cpu
from tunefarm.home import Home, write_atomically
from tunefarm.results import plots
from tunefarm.results.bench import BenchProtocol, Entry
from tunefarm.results.runtimes.contract import Subject
from tunefarm.results.tracking import experiment_of, prepare_environment

EXPERIMENT = "tunefarm-bench"
RAW = "raw.json"


def keep(directory: Path, entries: Sequence[Entry]) -> None:
    """Write what has been measured so far: the raw reports."""
    raw = [dataclasses.asdict(one) for one in entries]
    for report in (report for one in raw for report in one["reports"]):
        if not math.isfinite(report["max_rel_err"]):
            report["max_rel_err"] = None  # JSON has no word for infinite
    write_atomically(directory / RAW, _json({"raw": raw}))


def record(
    home: Home,
    directory: Path,
    subject: Subject,
    entries: Sequence[Entry],
    rows: list[dict[str, Any]],
    protocol: BenchProtocol,
) -> dict[str, Any]:
    """Write bench.json, raw.json and bench.png into `directory`, and a run to MLflow; the
    document. MLflow may be down: the document says so in `mlflow`."""
    keep(directory, entries)
    document: dict[str, Any] = {
        "model": subject.model.name,
        "directory": str(directory),
        "artifact": str(subject.artifact) if subject.artifact is not None else None,
        "rounds": subject.rounds,
        "threads": subject.threads,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpu": cpu.cpu_model(), "cores": cpu.usable_cores(), **cpu.conditions()},
        "protocol": dataclasses.asdict(protocol),
        "runtimes": rows,
    }
    figure = plots.runtimes([row for row in rows if "out" not in row], subject.model.stem)
    figure.savefig(directory / "bench.png")
    write_atomically(directory / "bench.json", _json(document))
    document["mlflow"] = _track(home, directory, document, figure)
    write_atomically(directory / "bench.json", _json(document))
    return document


def _json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def _track(home: Home, directory: Path, document: dict[str, Any], figure: Figure) -> str:
    """The run's id, or why there is none."""
    prepare_environment()
    try:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=home.mlflow_uri)
        experiment = experiment_of(client, EXPERIMENT, home)
        run = str(client.create_run(experiment, run_name=directory.name).info.run_id)
        client.log_param(run, "model", document["model"])
        client.log_param(run, "threads", document["threads"])
        client.log_param(run, "cpu", document["machine"]["cpu"])
        for row in document["runtimes"]:
            # Of one that computes something else, how far it is off, and no times to compare.
            times = ("median_ms", "load_s", "first_ms", "compile_s", "peak_bytes")
            for name in (*(times if row.get("right") else ()), "max_rel_err"):
                if row.get(name) is not None:
                    client.log_metric(run, f"{row['runtime']}.{name}", row[name])
        client.log_dict(run, document, "bench.json")
        client.log_artifact(run, str(directory / RAW))
        client.log_figure(run, figure, "bench.png")
        client.set_terminated(run)
    except Exception as error:  # MLflow raises whatever its store's driver raises
        return f"not recorded: {str(error).splitlines()[0] if str(error) else error!r}"
    return run
