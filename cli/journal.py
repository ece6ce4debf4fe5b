"""tunefarm journal check | export | withdraw"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tunefarm.cli.common import Moment, json_option, show_json

_MEND = "Mend it: tunefarm journal check --mend (a job does so before it begins)."


@click.group("journal")
def command() -> None:
    """The farm's durable record: look it over, take it out, take a bad worker's results back."""


@command.command("check")
@click.option(
    "--mend",
    is_flag=True,
    help="Put a journal with all sound facts in the damaged one's place, which is kept beside it.",
)
@json_option
def check(mend: bool, as_json: bool) -> None:
    """Look at every fact: does it say what was written? (exit 5 where one does not)

    A job does this before it begins, and mends what it finds (SQLite; PostgreSQL looks after its
    own files).
    """
    from tunefarm.errors import StoreError
    from tunefarm.home import Home
    from tunefarm.results.journal import Journal
    from tunefarm.results.store import DamagedStore

    try:
        journal = Journal(Home.from_environment().prepare(), mends=mend)
    except DamagedStore as error:
        raise StoreError(f"the journal is damaged: {error.message}", hint=_MEND) from None
    damage = journal.damage()
    mended = journal.mended or (journal.mend() if mend and damage else None)
    counts = journal.fact_counts()
    journal.close()
    if as_json:
        aside = str(mended.aside) if mended else None
        show_json({"facts": counts, "damage": damage, "mended": mended is not None, "aside": aside})
        if damage and not mended:
            sys.exit(StoreError.exit_code)
        return
    if damage and not mended:
        found = ", ".join(f"{name} {count}" for name, count in damage.items())
        raise StoreError(
            f"the journal is damaged: {found}",
            hint=_MEND,
        )
    click.echo(mended.words() if mended else f"{sum(counts.values())} facts, all sound")


@command.command("export")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@json_option
def export(directory: Path, as_json: bool) -> None:
    """Write every fact to DIRECTORY: one Parquet file a table."""
    from tunefarm.errors import StoreError
    from tunefarm.home import Home
    from tunefarm.results.journal import Journal
    from tunefarm.results.journal_export import export_facts

    journal = Journal(Home.from_environment().prepare())
    try:
        counts = export_facts(journal, directory)
    except OSError as error:
        raise StoreError(f"{directory} cannot be written: {error.strerror or error}") from None
    finally:
        journal.close()
    if as_json:
        show_json({"directory": str(directory), "facts": counts})
    else:
        click.echo(f"{sum(counts.values())} facts in {len(counts)} files in {directory}")


@command.command("withdraw")
@click.argument("unit")
@click.option("--since", type=Moment(), help="In UTC, or with an offset.  [default: the beginning]")
@click.option("--until", type=Moment(), help="The same.  [default: now]")
@click.option("--reason", required=True, help="For whoever reads the journal.")
@json_option
def withdraw(
    unit: str, since: float | None, until: float | None, reason: str, as_json: bool
) -> None:
    """Let what UNIT (a device's id) has measured count for nothing from now on.

    It stays on record, with the reason. Later jobs do not know it any more, and an unfinished job
    that counted on it cannot go on: submit its model anew, and what other units measured is known.
    What finished jobs have packaged stays as it is: the jobs are listed.
    """
    from tunefarm.home import Home
    from tunefarm.results.journal import Journal
    from tunefarm.results.lessons import drop_lessons

    home = Home.from_environment().prepare()
    journal = Journal(home)
    jobs = journal.withdraw(unit, since or 0.0, until, reason)
    journal.close()
    for job in jobs:
        drop_lessons(home, job)
    if as_json:
        show_json({"unit": unit, "jobs": jobs})
    elif jobs:
        click.echo(f"withdrawn; {unit} has measured for: {', '.join(jobs)}")
        click.echo("The cost model still knows it: tunefarm costmodel train", err=True)
    else:
        click.echo(f"withdrawn; {unit} had measured nothing in that time")
