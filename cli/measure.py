"""tunefarm measure"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import click

from tunefarm.cli.common import Duration, json_option, show_json


@click.group("measure")
def command() -> None:
    """Measure by file, on machines that no network leads to."""


@command.command("run")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the report goes.  [default: BUNDLE.report]",
)
@click.option(
    "--for", "limit_s", type=Duration(), help="Begin no measurement after it, such as 10m."
)
@json_option
def run(bundle: Path, report: Path | None, limit_s: float | None, as_json: bool) -> None:
    """Measure what is in BUNDLE on this machine's device, and write a report.

    Without tunefarm: python BUNDLE [REPORT] [--for TIME]. Ctrl-C, SIGTERM, and --for leave a report
    of what was measured; the job sends the rest again.
    """
    from tunefarm.measure.bundles.bundle import report_of
    from tunefarm.measure.bundles.main import heed_signals
    from tunefarm.measure.bundles.run import run_bundle

    heed_signals()
    path = report or report_of(bundle)
    limit_s = math.inf if limit_s is None else limit_s
    made = run_bundle(bundle, path, lambda text: click.echo(text, err=True), limit_s=limit_s)
    if as_json:
        device = made.device
        found = {"report": str(path), "bundle": made.bundle, "answers": len(made.answers)}
        show_json({**found, "device": {"id": device.id, "sku": device.sku}})
    else:
        click.echo(f"report: {path} ({len(made.answers)} answers)")


@command.command("export")
@click.argument("job")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@json_option
def export(job: str, directory: Path, as_json: bool) -> None:
    """Copy the bundles that JOB waits for to DIRECTORY: a memory stick, say."""
    from tunefarm.errors import UsageError
    from tunefarm.home import Home
    from tunefarm.results.journal import Journal
    from tunefarm.scheduler.exchange import waiting_for

    home = Home.from_environment().prepare()
    journal = Journal(home)
    found = journal.job(job)
    journal.close()
    if not found.options.get("exchange"):
        raise UsageError(
            f"job {found.id} does not measure by file",
            hint="tunefarm submit MODEL --trials N --measure-by-bundle DIR",
        )
    paths = waiting_for(home.job_dir(found.id))
    directory.mkdir(parents=True, exist_ok=True)
    copied = [Path(shutil.copy2(one, directory / one.name)) for one in paths]
    if as_json:
        show_json({"job": found.id, "bundles": [str(one) for one in copied]})
        return
    for one in copied:
        click.echo(f"{one}  (run there: python {one.name})")
    if not copied:
        click.echo(f"job {found.id} waits for no bundle", err=True)


@command.command("import")
@click.argument("report", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@json_option
def import_(report: Path, as_json: bool) -> None:
    """Hand REPORT to the job that waits for it; what it says goes to the journal.

    A job that is not running reads it when it is resumed.
    """
    from tunefarm.home import Home
    from tunefarm.results.driver_lock import driver_is_alive
    from tunefarm.scheduler.exchange import accept

    home = Home.from_environment().prepare()
    job, answers = accept(home, report)
    running = driver_is_alive(home, job)
    if as_json:
        show_json({"job": job, "answers": answers, "running": running})
        return
    click.echo(f"{answers} answers for job {job}")
    if not running:
        click.echo(f"it is not running: tunefarm resume {job}", err=True)
