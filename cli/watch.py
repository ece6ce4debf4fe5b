"""tunefarm watch"""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from tunefarm.cli.common import json_option, show_json
from tunefarm.cli.desk import farm_options, open_desk


@click.command("watch")
@click.argument("job")
@click.option("--every", default=1.0, show_default=True, help="Seconds between two looks.")
@farm_options
@json_option
def command(job: str, every: float, farm: str | None, token: str | None, as_json: bool) -> None:
    """Follow JOB until it ends; the exit code is the job's."""
    from tunefarm.scheduler.desk import follow

    data = follow(open_desk(farm, token), job, every, say)
    if as_json:
        show_json(data)
    sys.exit(data["exit_code"])


def say(data: dict[str, Any]) -> None:
    counts = data["counts"]
    text = f"{data['phase']}, {counts['measured']} measured, {counts['failed']} failed"
    click.echo(f"{time.strftime('%H:%M:%S')} {data['status']}: {text}", err=True)
