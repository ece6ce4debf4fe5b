"""The command group. Commands are imported when they are called, so that help is quick."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from typing import Any, ClassVar

import click

from tunefarm import __version__
from tunefarm.cli.common import fail, show_json
from tunefarm.errors import Interrupted, JobError, TunefarmError

_COMMANDS = {
    "submit": ("tunefarm.cli.submit", "Tune a model and package an artifact per target."),
    "jobs": ("tunefarm.cli.jobs", "List the jobs of this farm, newest first."),
    "status": ("tunefarm.cli.status", "Show one job: phase, counts, results."),
    "watch": ("tunefarm.cli.watch", "Follow a job until it ends."),
    "logs": ("tunefarm.cli.logs", "Print a job's log."),
    "cancel": ("tunefarm.cli.cancel", "End a job for good."),
    "resume": ("tunefarm.cli.resume", "Go on with an interrupted job."),
    "devices": (
        "tunefarm.cli.devices",
        "List, probe, drain or quarantine the devices of this farm.",
    ),
    "up": ("tunefarm.cli.up", "Make this machine the head of a farm."),
    "worker": ("tunefarm.cli.worker", "Let this machine join a farm."),
    "artifacts": ("tunefarm.cli.artifacts", "List, pull, inspect, verify and run artifacts."),
    "measure": ("tunefarm.cli.measure", "Measure by file, where no network leads."),
    "bench": ("tunefarm.cli.bench", "Run a model in several runtimes, side by side."),
    "compare": ("tunefarm.cli.compare", "Run the artifacts of two jobs in turns."),
    "costmodel": ("tunefarm.cli.costmodel", "What earlier jobs teach later ones."),
    "journal": ("tunefarm.cli.journal", "Check, export and correct the durable record."),
    "ui": ("tunefarm.cli.ui", "Open the MLflow UI on this farm's store."),
    "sync": ("tunefarm.cli.sync", "Write to MLflow what it missed during an outage."),
    "zoo": ("tunefarm.cli.zoo", "Write a real network with seeded random weights."),
    "doctor": ("tunefarm.cli.doctor", "Check what works here, and how to mend what does not."),
}


class LazyGroup(click.Group):
    """Knows its commands by name and one line; imports one when it is asked for."""

    order: ClassVar[list[str]] = list(_COMMANDS)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self.order

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tunefarm")
def cli() -> None:
    """A tuning and benchmarking farm for tensor programs.

    A model goes in, and for every target an artifact comes out that is measurably faster than
    the untuned build, with the measurements that show it.

    \b
      tunefarm submit model.onnx --targets llvm
      tunefarm artifacts list

    Everything a farm knows lies in TUNEFARM_HOME (by default ~/.tunefarm).
    """


def main(args: list[str] | None = None) -> Any:
    """Entry point: runs the command and turns errors into sentences and exit codes."""
    code: Any = 1
    try:
        _run(args)
        code = 0
    except SystemExit as leave:
        code = leave.code
        raise
    finally:
        _leave(code)


def _leave(code: Any) -> None:
    """Where machines have died, Ray's own way of leaving a farm may end in a crash of its native
    threads, and so would a command that has said everything. The farm notices that we are gone."""
    farm = sys.modules.get("tunefarm.scheduler.farm")
    if farm is not None and farm.has_joined():
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _run(args: list[str] | None) -> None:
    arguments = sys.argv[1:] if args is None else args
    as_json = "--json" in arguments
    try:
        cli.main(arguments, prog_name="tunefarm", standalone_mode=False)
    except TunefarmError as error:
        fail(error, as_json)
    except click.exceptions.Exit as leave:
        sys.exit(leave.exit_code)
    except click.ClickException as error:
        error.show()
        if as_json:
            show_json({"error": error.format_message(), "hint": "", "exit_code": 2})
        sys.exit(2)
    except (click.exceptions.Abort, KeyboardInterrupt):
        fail(Interrupted("interrupted"), as_json)
    except BrokenPipeError:
        sys.exit(0)  # who read our output has seen enough: `tunefarm jobs | head`
    except Exception as error:
        traceback.print_exc()
        name = type(error).__name__
        fail(JobError(f"{name}: {error}", hint="This is a fault of tunefarm's."), as_json)
