"""tunefarm costmodel export | train | evaluate"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunefarm.cli.common import json_option, show_json

if TYPE_CHECKING:
    from tunefarm.costmodel.lessons import Lesson
    from tunefarm.costmodel.transfer import HeldOut
    from tunefarm.home import Home

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Lessons from `tunefarm costmodel export`.  [default: those of this farm's jobs]",
)


@click.group("costmodel")
def command() -> None:
    """What earlier jobs teach later ones.

    Every finished job leaves its lessons, and trains the farm's cost model anew; the next job
    starts from it (unless it is submitted with --no-transfer). These commands do the same by hand.
    """


@command.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def export(file: Path, as_json: bool) -> None:
    """Write the lessons of this farm's jobs to FILE (Parquet)."""
    from tunefarm.errors import StoreError
    from tunefarm.results.lessons import write_lessons

    _, lessons = _lessons(None)
    try:
        write_lessons(file, lessons)
    except OSError as error:
        raise StoreError(f"{file} cannot be written: {error.strerror or error}") from None
    if as_json:
        show_json({"file": str(file), "lessons": len(lessons)})
    else:
        click.echo(f"{len(lessons)} lessons in {file}")


@command.command("train")
@data_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@json_option
def train_command(data: Path | None, seed: int, as_json: bool) -> None:
    """Train this farm's cost model; the next finished job trains it anew, on its own jobs' lessons.

    Of each family of schedules, what finds good points no sooner on networks left out of its
    training is dropped.
    """
    from tunefarm.costmodel.transfer import train
    from tunefarm.errors import StoreError

    home, lessons = _lessons(data)
    model, evidence = train(lessons, seed)
    try:
        model.save(home.costmodel)
    except OSError as error:
        raise StoreError(f"{home.costmodel} cannot be written: {error.strerror}") from None
    if as_json:
        show_json({"model": str(home.costmodel), **model.about, "evidence": _rows(evidence)})
        return
    _show(evidence)
    about = model.about
    click.echo(
        f"trained on {about['lessons']} lessons of {about['kernels']} kernels, "
        f"{about['networks']} networks"
    )
    click.echo(f"kept: {', '.join(about['kept']) or 'nothing'}")
    if dropped := ", ".join(about["dropped"]):
        click.echo(f"dropped, for it does not help (or there is too little): {dropped}")
    click.echo(f"written to {home.costmodel}")


@command.command("evaluate")
@data_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@json_option
def evaluate_command(data: Path | None, seed: int, as_json: bool) -> None:
    """Leave one network out, train on the others, and order its points; for every network.

    The points are those that jobs have measured, so this says how soon the best of them would have
    been tried, not how good a point there might be besides.
    """
    from tunefarm.costmodel.transfer import evaluate

    _, lessons = _lessons(data)
    evidence = evaluate(lessons, seed)
    if as_json:
        show_json({"lessons": len(lessons), "evidence": _rows(evidence)})
    else:
        _show(evidence)


def _lessons(data: Path | None) -> tuple[Home, list[Lesson]]:
    from tunefarm.errors import StoreError
    from tunefarm.home import Home
    from tunefarm.results.lessons import home_lessons, read_lessons

    home = Home.from_environment().prepare()
    lessons = read_lessons(data) if data is not None else home_lessons(home)
    if not lessons:
        raise StoreError(
            f"there are no lessons (of this version) in {data or home.root}",
            hint="Every finished job leaves some: tunefarm submit",
        )
    return home, lessons


def _rows(evidence: Sequence[HeldOut]) -> list[dict[str, Any]]:
    import dataclasses

    return [dataclasses.asdict(one) for one in evidence]


def _show(evidence: Sequence[HeldOut]) -> None:
    import math

    from rich.console import Console
    from rich.table import Table

    if not evidence:
        click.echo("too few kernels were measured to leave some out")
        return
    table = Table(title="Left out of the training, then ordered by the model")
    for name in ("network", "family", "kernels"):
        table.add_column(name)
    for name in ("slower than best\nwithout", "learnt", "tries to best\nwithout", "learnt"):
        table.add_column(name, justify="right")
    for one in evidence:
        table.add_row(
            one.network[:16],
            one.family,
            str(one.kernels),
            f"{math.expm1(one.without):.1%}",
            f"{math.expm1(one.learnt):.1%}",
            f"{one.trials_without:.1f}",
            f"{one.trials_learnt:.1f}",
        )
    Console().print(table)
    click.echo("Slower than best: the best of the first four, against the best measured.")
    click.echo("Tries: until one is within 2 % of the best measured. Without: no learnt model.")
