"""tunefarm cancel"""

from __future__ import annotations

import click

from tunefarm.cli.common import json_option, show_json
from tunefarm.cli.desk import farm_options, open_desk


@click.command("cancel")
@click.argument("job")
@farm_options
@json_option
def command(job: str, farm: str | None, token: str | None, as_json: bool) -> None:
    """End JOB for good. What it measured stays on record."""
    found = open_desk(farm, token).cancel(job)
    if as_json:
        show_json(found)
    else:
        click.echo(f"job {found['job']}: {found['status']}")
