"""tunefarm logs"""

from __future__ import annotations

import click

from tunefarm.cli.common import json_option, show_json
from tunefarm.cli.desk import farm_options, open_desk


@click.command("logs")
@click.argument("job")
@farm_options
@json_option
def command(job: str, farm: str | None, token: str | None, as_json: bool) -> None:
    """Print JOB's log: phases, progress, failures of candidates."""
    found = open_desk(farm, token).log(job)
    if as_json:
        show_json(found)
    else:
        click.echo("\n".join([*found["lines"], *found["failures"]]))
