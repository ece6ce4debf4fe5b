"""tunefarm cancel"""

from __future__ import annotations

import time

import click

from tunefarm.cli.common import json_option, open_job, show_json


@click.command("cancel")
@click.argument("job")
@json_option
def command(job: str, as_json: bool) -> None:
    """End JOB for good. What it measured stays on record."""
    from tunefarm.errors import JobError
    from tunefarm.results.driver_lock import driver_is_alive
    from tunefarm.results.life import TERMINAL

    home, journal, found = open_job(job)
    status = journal.status(found.id)
    if status in TERMINAL:
        raise JobError(f"job {found.id} has ended already: {status}")
    journal.add_event(found.id, "cancel_requested")
    deadline = time.monotonic() + 60
    while driver_is_alive(home, found.id) and time.monotonic() < deadline:
        time.sleep(0.2)
    if journal.status(found.id) not in TERMINAL and not driver_is_alive(home, found.id):
        journal.add_event(found.id, "cancelled")  # nobody drives it who could say so
    status = journal.status(found.id)
    if as_json:
        show_json({"job": found.id, "status": status})
    else:
        click.echo(f"job {found.id}: {status}")
