"""How a job's outcome is shown: as the contract's JSON, or as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tunefarm.cli.common import format_latency, format_ratio, format_seconds
from tunefarm.results.alias import alias_of, registered_name

_COLUMNS = ("target", "verdict", "untuned", "tuned", "faster", "95 % interval", "time")


def _notes(target: str, row: dict[str, Any]) -> list[str]:
    failures = ", ".join(f"{count} {kind}" for kind, count in row["failures"].items())
    against = f"against ONNX Runtime {off(row['parity'])}"
    if row["parity"]["passed"] is None:
        against = "nobody has run it: for trials alone, it is not registered for deployment"
    elif row["verdict"] == "UNMEASURED":
        against += "; run on a GPU of paper alone, it is not registered for deployment"
    why = row.get("why_untuned")  # an older tunefarm's says nothing
    return [
        *([f"{target}: the untuned build ships: {why}"] if why else []),
        *(f"{target}: {line}" for line in service(row)),
        f"{target}: {row['tasks']} kernel{'' if row['tasks'] == 1 else 's'}, "
        f"{row['candidates']} candidates measured, "
        f"failed: {failures or 'none'}",
        f"{target}: {against}",
        f"{target}: artifact {row['artifact']}",
    ]


def off(parity: dict[str, Any]) -> str:
    """How far a model's outputs are from those it was held against."""
    error = parity["max_rel_err"]
    far = f"largest relative error {error:.1e}" if error is not None else "not finite"
    return far if parity["passed"] else f"{far} (TOO LARGE)"


def service(row: dict[str, Any]) -> list[str]:
    """What a target's result, or an artifact's, says of the model as a service will have it, and
    against what shipped before; an older tunefarm's says nothing."""
    said = []
    had = row.get("service") or {}
    words = {
        "load_ms": "library and weights load in",
        "first_ms": "first answer after",
        "p90_ms": "90th percentile",
        "p99_ms": "99th",
    }
    known = [key for key in words if had.get(key) is not None]
    parts = [f"{words[key]} {format_latency(had[key])}" for key in known]
    if had.get("peak_mb") is not None:
        parts.append(f"peak memory {had['peak_mb']:.0f} MB")
    if parts:
        said.append(", ".join(parts))
    if previous := row.get("previous"):
        what = f"what shipped before ({previous['digest'][:12]}, {previous['job']})"
        if previous["speedup"]:
            low, high = map(format_ratio, previous["speedup_ci95"])
            faster = f"{format_ratio(previous['speedup'])}x ({low} to {high}) as fast as"
            said.append(f"{previous['verdict']}, {faster} {what}")
        elif previous["verdict"] == "SAME":
            said.append(f"the same bytes as {what}")
        else:
            said.append(f"not compared with {what}: that did not run in every process")
    return said


def show(found: dict[str, Any], farm: str | None = None, tracking_problem: str = "") -> None:
    """The closing table, on standard output; of a job at the farm whose door is at `farm`, where
    that is named."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    rows: list[list[str]] = []
    notes = []
    for target, row in found["targets"].items():
        if "skipped" in row:
            rows.append([target, "skipped", *[""] * 5])
            notes.append(f"{target} was skipped: {row['skipped']}")
            continue
        interval = row["speedup_ci95"]
        rows.append(
            [
                target,
                row["verdict"],
                format_latency(row["baseline_ms"]),
                format_latency(row["tuned_ms"]),
                f"{format_ratio(row['speedup'])}x" if row["speedup"] else "-",
                f"{format_ratio(interval[0])} to {format_ratio(interval[1])}" if interval else "-",
                format_seconds(row["wall_s"]),
            ]
        )
        notes += _notes(target, row)
    table = Table(title=f"{found['name']}  ({found['job']})", title_justify="left")
    # Of what nobody has measured there are no times to show.
    said = [n for n in range(len(_COLUMNS)) if any(row[n] not in ("", "-") for row in rows)]
    for n in said:
        table.add_column(_COLUMNS[n], justify="left" if n < 2 else "right", overflow="fold")
    for cells in rows:
        table.add_row(*(cells[n] for n in said))
    console.print(table)
    for note in notes:
        click.echo(note)
    if farm is not None:
        for target, row in found["targets"].items():
            if row.get("verdict", "UNMEASURED") == "UNMEASURED":  # skipped, or not registered
                continue
            name = f"{registered_name(found['name'])}@{alias_of(target)}"
            click.echo(f"fetch it: tunefarm artifacts pull {name} --farm {farm}")
        return
    click.echo(f"report: {found['report']}")
    if tracking_problem:
        click.echo(f"MLflow lags behind ({tracking_problem}); later: tunefarm sync")
    click.echo(f"MLflow UI: TUNEFARM_HOME={Path(found['report']).parents[2]} tunefarm ui")
