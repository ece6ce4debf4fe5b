"""tunefarm resume"""

from __future__ import annotations

import click

from tunefarm.cli.common import json_option, open_job


@click.command("resume")
@click.argument("job")
@json_option
def command(job: str, as_json: bool) -> None:
    """Go on with an interrupted JOB: nothing that was measured is measured again."""
    from tunefarm.cli.submit import run
    from tunefarm.errors import JobError

    home, journal, found = open_job(job)
    status = journal.status(found.id)
    if status in ("succeeded", "cancelled"):
        raise JobError(f"job {found.id} has {status}; there is nothing to resume")
    run(home, journal, found, as_json)
