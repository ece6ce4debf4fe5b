"""tunefarm submit"""

from __future__ import annotations

import contextlib
import re
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunefarm.cli.common import Duration, Shape, json_option, show_json
from tunefarm.cli.desk import is_door
from tunefarm.cli.sending import say_queued, send

if TYPE_CHECKING:
    from tunefarm.home import Home
    from tunefarm.results.facts import Job
    from tunefarm.results.journal import Journal

DEFAULT_BUDGET_S = 600.0
DEFAULT_ENOUGH = 0.01


@click.command("submit")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--targets",
    default="host",
    show_default=True,
    help="Comma-separated: llvm, cuda, a kind with attributes (llvm:mcpu=znver5), a TVM tag, host. "
    "cuda:precision=tf32 allows that factors of float32 products are rounded to ten bits, "
    "llvm:precision=bfloat16, for processors with AMX or AVX-512 BF16, to seven.",
)
@click.option("--trials", type=click.IntRange(min=1), help="Candidates to measure per target.")
@click.option(
    "--budget",
    type=Duration(),
    help="Time for the job, such as 30m. Default, without --trials: until the latest third of the "
    "candidates gained less than 1 %, at most 10m.",
)
@click.option("--name", help="The job's and its artifacts' name.  [default: the file's name]")
@click.option("--shape", "shapes", type=Shape(), multiple=True, help="Fix an input's shape.")
@click.option(
    "--layout",
    type=click.Choice(["auto", "NCHW", "NHWC"]),
    default="auto",
    show_default=True,
    help="Of images inside the network. auto: channels last where that takes no transposes inside, "
    "else whichever is measured to be faster.",
)
@click.option(
    "--strategy",
    default="portfolio",
    show_default=True,
    help="Or: guided, evolutionary, tpe, random.",
)
@click.option(
    "--retune",
    is_flag=True,
    help="Search kernels again that earlier jobs have searched; else their results count.",
)
@click.option(
    "--no-transfer",
    is_flag=True,
    help="Do not start from the cost model that earlier jobs have trained.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of everything random."
)
@click.option(
    "--no-device",
    type=click.Choice(["fail", "skip", "build"]),
    default="fail",
    show_default=True,
    help="What to do with a target that no registered device serves. build: with the schedules "
    "that the cost model likes best; nothing of it is measured, its verdict is UNMEASURED. For a "
    "GPU it is run on a GPU of paper, to see what it computes, while the budget lasts.",
)
@click.option(
    "--measure-by-bundle",
    "exchange",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Measure on a device that no network leads to: bundles of what is to be measured are "
    "written to DIR, to be run there (python BUNDLE), and their reports awaited in DIR.",
)
@click.option(
    "--per-bundle",
    type=click.IntRange(8, 10_000),
    metavar="N",
    help="Measurements in a bundle at most: as many as --trials, and one bundle carries the whole "
    "search, which then learns nothing on its way.  [default: 48]",
)
@click.option(
    "--priority",
    type=click.Choice(["low", "normal", "high"]),
    default="normal",
    show_default=True,
    help="Of the farm's devices, where jobs share them, each step has three times as much.",
)
@click.option("--tracking-uri", help="Any MLflow tracking URI.  [default: the farm home's own]")
@click.option(
    "--farm",
    envvar="TUNEFARM_FARM",
    metavar="ADDRESS",
    help="Submit to the farm whose door is there (http://HOST:PORT), from any machine. With "
    "HOST:PORT of its head, from one of its machines, which then drives the job.",
)
@click.option(
    "--token",
    envvar="TUNEFARM_FARM_TOKEN",
    metavar="FILE",
    help="The door's token, or the farm's.  [default: door.token, or farm.token, in this farm's "
    "home]",
)
@click.option("--detach", is_flag=True, help="Return at once; the job runs in the background.")
@json_option
def command(
    model: Path,
    targets: str,
    trials: int | None,
    budget: float | None,
    name: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    layout: str,
    strategy: str,
    retune: bool,
    no_transfer: bool,
    seed: int,
    no_device: str,
    exchange: Path | None,
    per_bundle: int | None,
    priority: str,
    tracking_uri: str | None,
    farm: str | None,
    token: str | None,
    detach: bool,
    as_json: bool,
) -> None:
    """Tune MODEL (an ONNX file) and package one artifact per target.

    Ctrl-C interrupts the job; `tunefarm resume JOB` goes on where it stood. A job that was sent to
    a farm's door goes on there.
    """
    from tunefarm.cli.targets import by_file, devices_of, left_alone, targets_of
    from tunefarm.errors import JobError
    from tunefarm.frontend.onnx.identity import check_alone, model_digest
    from tunefarm.home import Home
    from tunefarm.results.facts import Job
    from tunefarm.results.journal import Journal
    from tunefarm.results.known import twin
    from tunefarm.results.life import TERMINAL
    from tunefarm.scheduler.desk import await_driver, start_driver

    try:
        model.name.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{model.name!r} is no UTF-8: rename it") from None
    digest = model_digest(model)
    if per_bundle is not None and exchange is None:
        raise click.UsageError("--per-bundle: of --measure-by-bundle alone")
    if exchange is not None:
        if farm is not None:
            raise click.UsageError("--measure-by-bundle: not with --farm, whose units are its own")
        if trials is None or budget is not None:
            raise click.UsageError(
                "--measure-by-bundle: say with --trials how much is to be measured; how long it "
                "takes is for whoever carries the bundles"
            )
    if farm is not None and is_door(farm):
        if tracking_uri:
            raise click.UsageError("--tracking-uri: a farm keeps its own records")
        check_alone(model, digest)
        options = {
            "targets": targets,
            "trials": trials,
            "budget_s": budget,
            "name": name or model.stem,
            "shapes": [[key, list(dims)] for key, dims in shapes],
            "layout": layout,
            "strategy": strategy,
            "retune": retune,
            "transfer": not no_transfer,
            "seed": seed,
            "no_device": no_device,
            "priority": priority,
        }
        send(farm, token, model, digest, options, detach, as_json)
        return
    home = Home.from_environment().prepare()
    _check_strategy(strategy)
    joined = _farm(home, farm, token)
    if exchange is not None:
        chosen = by_file(home, exchange, targets)
        skipped: dict[str, str] = {}
    else:
        devices = devices_of(home, joined)
        reasons = left_alone(joined)
        chosen, skipped = targets_of(home, devices, targets, no_device, reasons)
    label = _label(name or model.stem)
    enough = None
    if trials is None and budget is None:
        budget, enough = DEFAULT_BUDGET_S, DEFAULT_ENOUGH
    job = Job(
        id=f"{label[:40]}-{secrets.token_hex(3)}",
        name=label,
        created=time.time(),
        model_digest=digest,
        model_source=model.name,
        options={
            "model": str(model.absolute()),
            "trials": trials,
            "budget_s": budget,
            "enough": enough,
            "shapes": [[key, list(dims)] for key, dims in shapes],
            "layout": None if layout == "auto" else layout,
            "strategy": strategy,
            "retune": retune,
            "transfer": not no_transfer,
            "seed": seed,
            "priority": priority,
            "farm": joined,
            "exchange": str(exchange.absolute()) if exchange else None,
            "per_bundle": per_bundle,
            "skipped": skipped,
            "tracking_uri": tracking_uri or home.mlflow_uri,
        },
        protocol=_protocol(seed),
    )
    if not detach:
        import tunefarm.scheduler.driver  # noqa: F401 - Ray takes a second: before the job is there
    journal = Journal(home)
    if not retune and (other := twin(journal, job, chosen)):
        journal.close()
        _join(home, other, detach, as_json)
        return
    journal.add_job(job, chosen)
    if detach:
        try:
            await_driver(home, job.id, start_driver(home, job.id))
        except JobError:
            if journal.status(job.id) not in TERMINAL:  # else it was quick, and is on record
                raise
        say_queued({"job": job.id, "status": "queued", "name": job.name}, None, as_json)
        return
    run(home, journal, job, as_json)


def _check_strategy(name: str) -> None:
    from tunefarm.errors import UsageError
    from tunefarm.search.plugins import load_plugins
    from tunefarm.search.strategy import strategy_names

    load_plugins()
    if name not in strategy_names():
        raise UsageError(
            f"--strategy {name}: there is none; choose from {', '.join(strategy_names())}"
        )


def _farm(home: Home, address: str | None, token: str | None) -> dict[str, str] | None:
    """Where a job's machines are; None for this one alone."""
    from tunefarm.scheduler.token import existing_token

    if address is None:
        return None
    return {"address": address, "token": str(existing_token(home, token))}


def _label(text: str) -> str:
    """What may be part of a file's name, and leaves room for the rest of it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:100].rstrip("-.") or "model"


def _protocol(seed: int) -> dict[str, Any]:
    from tunefarm.measure.protocol import Protocol

    return Protocol(seed=seed).to_dict()


def _join(home: Home, other: Job, detach: bool, as_json: bool) -> None:
    """The same is being done already: follow that job."""
    from tunefarm.cli import results, watch
    from tunefarm.results import documents
    from tunefarm.results.driver_lock import driver_is_alive
    from tunefarm.scheduler.desk import HomeDesk, await_driver, follow, start_driver

    click.echo(f"job {other.id} does the same already; --retune does it again", err=True)
    if not driver_is_alive(home, other.id):  # whoever submitted it did not get that far
        await_driver(home, other.id, start_driver(home, other.id))
    if detach:
        say_queued({"job": other.id, "status": "queued", "name": other.name}, None, as_json)
        return
    found = follow(HomeDesk(home), other.id, 1.0, watch.say)
    if as_json:
        show_json(documents.outcome(found))
    else:
        results.show(found)
    sys.exit(found["exit_code"])


def run(home: Home, journal: Journal, job: Job, as_json: bool) -> None:
    """Drive a job in this process, show its progress, and print its outcome."""
    if joined := job.options.get("farm"):
        from tunefarm.scheduler.token import authenticate

        authenticate(Path(joined["token"]))
    from tunefarm.cli import results
    from tunefarm.cli.console import ConsoleReporter
    from tunefarm.errors import Interrupted, TunefarmError
    from tunefarm.results import documents
    from tunefarm.results.journal import Journal
    from tunefarm.scheduler import learning
    from tunefarm.scheduler.driver import StopFlag, drive

    reporter = ConsoleReporter(home.job_dir(job.id) / "job.log")
    reporter.line(f"job {job.id}")
    if journal.mended:
        reporter.line(journal.mended.words())
    stop = StopFlag()
    stop.install()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints there when a machine is lost
            outcome = drive(home, job.id, reporter, stop)
    except BaseException as error:
        reporter.note(f"{type(error).__name__}: {error}")  # which is said when all is over
        if isinstance(error, TunefarmError):
            error.job = job.id
            if not isinstance(error, Interrupted):
                _report(home, job)
                error.targets = _packaged(home, job)
        raise
    finally:
        reporter.close()
        stop.uninstall()
    journal.close()  # it may have been mended meanwhile: another file is in its place
    _report(home, job)
    journal = Journal(home)
    found = documents.status(journal, job)
    journal.close()
    if as_json:
        show_json(documents.outcome(found))
    else:
        results.show(found, tracking_problem=outcome.tracking)
    with contextlib.suppress(KeyboardInterrupt):  # whoever has had enough may leave
        if note := learning.learn(home):
            click.echo(note, err=True)


def _packaged(home: Home, job: Job) -> dict[str, Any]:
    """Of a job that has failed, by target."""
    from tunefarm.errors import TunefarmError
    from tunefarm.results.journal import Journal

    try:
        journal = Journal(home)
        found = {row["target"]: row["summary"] for row in journal.artifacts(job.id)}
        journal.close()
    except TunefarmError:  # the record may be what is in trouble
        return {}
    return found


def _report(home: Home, job: Job) -> None:
    """Of a job that is over, as far as it came. Nothing depends on it."""
    from tunefarm.results.journal import Journal
    from tunefarm.results.reported import reported

    try:
        journal = Journal(home)
        done = journal.status(job.id) == "succeeded"
        if done or any(journal.tasks(job.id, t.name) for t in journal.targets(job.id)):
            reported(journal, job)
        journal.close()
    except Exception as error:
        click.echo(f"the report could not be written: {type(error).__name__}: {error}", err=True)
