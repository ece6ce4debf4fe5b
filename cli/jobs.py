"""tunefarm jobs"""

from __future__ import annotations

import click

from tunefarm.cli.common import json_option, show_json
from tunefarm.cli.desk import farm_options, open_desk


@click.command("jobs")
@farm_options
@json_option
def command(farm: str | None, token: str | None, as_json: bool) -> None:
    """List the jobs of this farm, newest first."""
    rows = open_desk(farm, token).jobs()
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
