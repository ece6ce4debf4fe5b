"""How a job's outcome is shown: as the contract's JSON, or as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunefarm.cli.common import format_latency, format_seconds

if TYPE_CHECKING:
    from tunefarm.home import Home
    from tunefarm.results.facts import Job
    from tunefarm.results.journal import Journal


def document(journal: Journal, job: Job) -> dict[str, Any]:
    """What `submit --json` prints."""
    from tunefarm.results.tracking_record import run_ids

    uri = job.options["tracking_uri"]
    targets = {row["target"]: row["summary"] for row in journal.artifacts(job.id)}
    skipped = {name: {"skipped": reason} for name, reason in job.options["skipped"].items()}
    return {
        "job": job.id,
        "status": journal.status(job.id),
        "name": job.name,
        "targets": {**targets, **skipped},
        "mlflow": {"tracking_uri": uri, "run_id": run_ids(journal, job.id, uri).get("run")},
    }


def _notes(target: str, row: dict[str, Any]) -> list[str]:
    failures = ", ".join(f"{count} {kind}" for kind, count in row["failures"].items())
    error = row["parity"]["max_rel_err"]
    parity = f"largest relative error {error:.1e}" if error is not None else "not finite"
    passed = "" if row["parity"]["passed"] else " (TOO LARGE)"
    return [
        f"{target}: {row['tasks']} kernels, {row['candidates']} candidates measured, "
        f"failed: {failures or 'none'}",
        f"{target}: against ONNX Runtime {parity}{passed}",
        f"{target}: artifact {row['artifact']}",
    ]


def show(home: Home, found: dict[str, Any], report: Path, tracking_problem: str = "") -> None:
    """The closing table, on standard output."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title=f"{found['name']}  ({found['job']})", title_justify="left")
    for name in ("target", "verdict", "untuned", "tuned", "faster", "95 % interval", "time"):
        table.add_column(name, justify="left" if name in ("target", "verdict") else "right")
    notes = []
    for target, row in found["targets"].items():
        if "skipped" in row:
            table.add_row(target, "skipped", *[""] * 5)
            notes.append(f"{target} was skipped: {row['skipped']}")
            continue
        interval = row["speedup_ci95"]
        table.add_row(
            target,
            row["verdict"],
            format_latency(row["baseline_ms"]),
            format_latency(row["tuned_ms"]),
            f"{row['speedup']:.1f}x" if row["speedup"] else "-",
            f"{interval[0]:.1f} to {interval[1]:.1f}" if interval else "-",
            format_seconds(row["wall_s"]),
        )
        notes += _notes(target, row)
    console.print(table)
    for note in notes:
        click.echo(note)
    click.echo(f"report: {report}")
    if tracking_problem:
        click.echo(f"MLflow lags behind ({tracking_problem}); later: tunefarm sync")
    click.echo(f"MLflow UI: TUNEFARM_HOME={home.root} tunefarm ui")
