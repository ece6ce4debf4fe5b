"""tunefarm watch"""

from __future__ import annotations

import sys
import time

import click

from tunefarm.cli.common import json_option, open_job, show_json

_EXIT = {"succeeded": 0, "interrupted": 130}


@click.command("watch")
@click.argument("job")
@click.option("--every", default=1.0, show_default=True, help="Seconds between two looks.")
@json_option
def command(job: str, every: float, as_json: bool) -> None:
    """Follow JOB until it ends; the exit code is the job's."""
    from tunefarm.cli.status import describe

    _, journal, found = open_job(job)
    last = ""
    while True:
        data = describe(journal, found)
        counts = data["counts"]
        text = (
            f"{data['status']}: {data['phase']}, {counts['measured']} measured, "
            f"{counts['failed']} failed"
        )
        if text != last:
            click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)
            last = text
        if data["status"] not in ("queued", "running"):
            break
        time.sleep(every)
    if as_json:
        show_json(data)
    failures = [e["detail"] for e in journal.events(found.id) if e["kind"] == "failed"]
    failed = failures[-1]["exit_code"] if failures else 5
    sys.exit(_EXIT.get(data["status"], failed))
