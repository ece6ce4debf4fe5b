"""tunefarm status"""

from __future__ import annotations

import click

from tunefarm.cli.common import json_option, show_json
from tunefarm.cli.desk import farm_options, open_desk


@click.command("status")
@click.argument("job")
@farm_options
@json_option
def command(job: str, farm: str | None, token: str | None, as_json: bool) -> None:
    """Show one JOB (id, beginning of an id, or name): phase, counts, results."""
    from tunefarm.cli import results

    data = open_desk(farm, token).job(job)
    if as_json:
        show_json(data)
        return
    counts = data["counts"]
    click.echo(f"{data['job']}: {data['status']}, phase {data['phase']}, started {data['started']}")
    click.echo(
        f"candidates: {counts['proposed']} proposed, {counts['measured']} measured, "
        f"{counts['failed']} failed"
    )
    if data["error"]:
        click.echo(f"error: {data['error']}")
    if data["status"] == "interrupted":
        click.echo(f"go on with: tunefarm resume {data['job']}")
    if data["targets"]:
        results.show(data, farm)
