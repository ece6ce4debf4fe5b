"""tunefarm compare"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunefarm.cli.common import format_latency, format_ratio, json_option, show_json
from tunefarm.cli.measuring import alone, protocol_options, steadied

if TYPE_CHECKING:
    from tunefarm.home import Home
    from tunefarm.results.artifact_file import Artifact
    from tunefarm.results.journal import Journal

_SHOWN = 12
"""Kernels of the table; all are in the JSON."""


@click.command("compare")
@click.argument("first")
@click.argument("second")
@click.option("--target", help="Of jobs with several targets: of which the artifacts are.")
@protocol_options(
    "Fresh ones, in each of which both run; with fewer than six there is no verdict.",
    "Of rounds in each process (five rounds at least).",
)
@json_option
def command(
    first: str, second: str, target: str | None, processes: int, seconds: float, as_json: bool
) -> None:
    """Run the artifacts of two jobs in turns: is SECOND faster than FIRST, and in which kernels?

    FIRST and SECOND are jobs (by id, or the newest of a name), or files of artifacts. What each job
    said of its own was measured at another time; here both run in the same processes.
    """
    from tunefarm.devices.registry import device_for, local_devices
    from tunefarm.devices.target import make_target
    from tunefarm.home import Home
    from tunefarm.measure.runner import MODEL_WAIT_S
    from tunefarm.results import duel
    from tunefarm.results.artifact_file import open_artifact, require_fit
    from tunefarm.results.journal import Journal

    home = Home.from_environment().prepare()
    journal = Journal(home)
    try:
        paths = tuple(_artifact(home, journal, one, target) for one in (first, second))
    finally:
        journal.close()
    artifacts = [open_artifact(path) for path in paths]
    for artifact in artifacts:
        require_fit(artifact)
    duel.check_alike(*artifacts)
    kind = make_target(str(artifacts[0].manifest["target"]["kind"]), {})
    device = device_for(kind, local_devices(home))
    threads = max(int(artifact.manifest["threads"]) for artifact in artifacts)
    with alone(device, "compare"), steadied(home, device) as machine:

        def before(process: int) -> None:
            click.echo(f"process {process + 1} of {processes}", err=True)
            machine.wait(MODEL_WAIT_S)

        pair = (paths[0], paths[1])
        found = duel.duel(pair, threads, processes, seconds, before, machine.near_s)
    document = _document(artifacts, found, duel.kernels(*artifacts))
    show_json(document) if as_json else _show(document)


def _artifact(home: Home, journal: Journal, wanted: str, target: str | None) -> Path:
    """Raises:
    UsageError: the job has none, or several.
    """
    from tunefarm.errors import UsageError

    if (path := Path(wanted)).is_file():
        return path
    job = journal.job(wanted)
    made = {row["target"]: Path(row["path"]) for row in journal.artifacts(job.id)}
    if target is None and len(made) == 1:
        return next(iter(made.values()))
    if target is None or target not in made:
        there = ", ".join(made) or "none"
        raise UsageError(
            f"job {job.id} has " + (f"no artifact for {target}" if target else f"{len(made)}"),
            hint=f"There are artifacts for: {there}. Name one with --target." if made else "",
        )
    return made[target]


def _document(
    artifacts: list[Artifact], found: Any, kernels: list[dict[str, Any]]
) -> dict[str, Any]:
    result = found.comparison
    sides = {
        side: {
            "artifact": str(artifact.path),
            "digest": artifact.digest,
            "model": artifact.manifest["model"]["digest"],
            "median_ms": seconds * 1e3,
        }
        for side, artifact, seconds in zip(
            ("first", "second"), artifacts, found.median_s, strict=True
        )
    }
    return {
        **sides,
        "speedup": result.speedup if result else found.median_s[0] / found.median_s[1],
        "speedup_ci95": [result.low, result.high] if result else None,
        "verdict": result.verdict.value if result else None,
        "apart": found.apart if found.apart != float("inf") else None,
        "kernels": kernels,
    }


def _show(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    interval = document["speedup_ci95"]
    for side in ("first", "second"):
        one = document[side]
        click.echo(f"{side:<7} {format_latency(one['median_ms']):>10}  {one['artifact']}")
    said = f"{format_ratio(document['speedup'])} times the first's speed"
    if interval:
        said += f", {format_ratio(interval[0])} to {format_ratio(interval[1])}"
        said += f": {document['verdict']}"
    click.echo(f"second  {said}")
    apart = document["apart"]
    alike = "not finite" if apart is None else f"at most {apart:.1e} of the largest element"
    click.echo(f"outputs apart: {alike}")
    if document["first"]["model"] != document["second"]["model"]:
        click.echo("They are of different models, with the same inputs and outputs.")
    rows = [row for row in document["kernels"] if row["schedule"] != "same"]
    if not rows:
        click.echo("Both have the same schedule for every kernel.")
        return
    table = Table(title=f"{len(rows)} kernels differ; as each job found them", title_justify="left")
    for name in ("kernel", "calls", "schedule", "first", "second"):
        table.add_column(name, justify="left" if name in ("kernel", "schedule") else "right")
    for row in rows[:_SHOWN]:
        times = (format_latency(row[f"{side}_ms"]) for side in ("first", "second"))
        table.add_row(row["kernel"], str(row["calls"]), row["schedule"], *times)
    Console(highlight=False).print(table)
    if len(rows) > _SHOWN:
        click.echo(f"and {len(rows) - _SHOWN} more (--json)")
