"""A benchmark's figures, raw samples and plot: as files, and as a run in MLflow."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from tunefarm.devices import cpu
from tunefarm.home import Home, write_atomically
from tunefarm.results import plots
from tunefarm.results.bench import BenchProtocol, Entry
from tunefarm.results.runtimes.contract import Subject
from tunefarm.results.tracking import experiment_of, prepare_environment

EXPERIMENT = "tunefarm-bench"


def record(
    home: Home,
    subject: Subject,
    entries: Sequence[Entry],
    rows: list[dict[str, Any]],
    protocol: BenchProtocol,
) -> dict[str, Any]:
    """Write bench.json and bench.png into the benchmark's directory, and a run to MLflow; the
    document. MLflow may be down: the document says so in `mlflow`."""
    document = {
        "model": subject.model.name,
        "directory": str(subject.directory),
        "artifact": str(subject.artifact) if subject.artifact is not None else None,
        "threads": subject.threads,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpu": cpu.cpu_model(), "cores": cpu.usable_cores(), **cpu.conditions()},
        "protocol": dataclasses.asdict(protocol),
        "runtimes": rows,
        "raw": [dataclasses.asdict(one) for one in entries],
    }
    figure = plots.runtimes([row for row in rows if "out" not in row], subject.model.stem)
    figure.savefig(subject.directory / "bench.png")
    document["mlflow"] = _track(home, subject, document, figure)
    text = json.dumps(document, indent=1) + "\n"
    write_atomically(subject.directory / "bench.json", text.encode())
    return document


def _track(home: Home, subject: Subject, document: dict[str, Any], figure: Figure) -> str:
    """The run's id, or why there is none."""
    prepare_environment()
    try:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=home.mlflow_uri)
        run = client.create_run(
            experiment_of(client, EXPERIMENT, home), run_name=subject.directory.name
        ).info.run_id
        client.log_param(run, "model", document["model"])
        client.log_param(run, "threads", document["threads"])
        client.log_param(run, "cpu", document["machine"]["cpu"])
        for row in document["runtimes"]:
            for name in ("median_ms", "load_s", "first_ms", "compile_s", "peak_bytes"):
                if name in row:
                    client.log_metric(run, f"{row['runtime']}.{name}", row[name])
        client.log_dict(run, document, "bench.json")
        client.log_figure(run, figure, "bench.png")
        client.set_terminated(run)
    except Exception as error:  # MLflow raises whatever its store's driver raises
        return f"not recorded: {str(error).splitlines()[0] if str(error) else error!r}"
    return str(run)
