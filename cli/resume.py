"""tunefarm resume"""

from __future__ import annotations

import click

from tunefarm.cli.common import json_option, open_job
from tunefarm.cli.desk import door_at, farm_options, open_door


@click.command("resume")
@click.argument("job")
@farm_options
@json_option
def command(job: str, farm: str | None, token: str | None, as_json: bool) -> None:
    """Go on with an interrupted JOB: no candidate that was measured is measured again.

    A farm's goes on at its head, and may be watched.
    """
    from tunefarm.cli.sending import say_queued
    from tunefarm.cli.submit import run
    from tunefarm.scheduler.desk import check_resumable

    if url := door_at(farm):
        say_queued(open_door(url, token).resume(job), url, as_json)
        return
    home, journal, found = open_job(job)
    check_resumable(found.id, journal.status(found.id))
    run(home, journal, found, as_json)
