"""tunefarm jobs"""

from __future__ import annotations

import time
from typing import Any

import click

from tunefarm.cli.common import json_option, show_json


@click.command("jobs")
@json_option
def command(as_json: bool) -> None:
    """List the jobs of this farm, newest first."""
    from tunefarm.home import Home
    from tunefarm.results.journal import Journal

    journal = Journal(Home.from_environment().prepare())
    rows: list[dict[str, Any]] = [
        {
            "job": job.id,
            "name": job.name,
            "status": journal.status(job.id),
            "targets": [t.name for t in journal.targets(job.id)],
            "candidates": journal.counts(job.id)["measured"],
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(job.created)),
        }
        for job in journal.jobs()
    ]
    if as_json:
        show_json({"jobs": rows})
        return
    if not rows:
        click.echo("no jobs yet; start one: tunefarm submit MODEL --targets llvm")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("job", "status", "targets", "candidates", "started"):
        table.add_column(name, justify="right" if name == "candidates" else "left")
    for row in rows:
        targets = ",".join(row["targets"])
        table.add_row(row["job"], row["status"], targets, str(row["candidates"]), row["started"])
    Console(highlight=False).print(table)
