"""tunefarm doctor"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version

import click

from tunefarm.cli.common import json_option, show_json
from tunefarm.errors import JobError, TunefarmError, UnsupportedTarget
from tunefarm.home import Home


def _python() -> str:
    return platform.python_version()


def _tvm() -> str:
    try:
        found = version("apache-tvm"), version("apache-tvm-ffi")
        wanted = _pinned("apache-tvm"), _pinned("apache-tvm-ffi")
    except PackageNotFoundError as error:
        raise TunefarmError(f"{error.name} is not installed", hint="make setup") from None
    if found != wanted:
        raise TunefarmError(
            f"apache-tvm {found[0]} with apache-tvm-ffi {found[1]}; "
            f"this wheel works with {wanted[0]} and {wanted[1]} (another ffi crashes)",
            hint=f"pip install apache-tvm=={wanted[0]} apache-tvm-ffi=={wanted[1]}",
        )
    return f"{found[0]}, ffi {found[1]}"


def _pinned(name: str) -> str:
    """The version that tunefarm is installed with."""
    pins = (one.partition("==") for one in requires("tunefarm") or ())
    return next(version for package, _, version in pins if package == name)


def _linker() -> str:
    from tunefarm.devices.cpu import linker_version

    found = linker_version()
    if not found:
        raise TunefarmError("no `ld` on the path", hint="Install binutils.")
    return found


def _library(name: str) -> Callable[[], str]:
    def check() -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            raise TunefarmError(f"{name} is not installed", hint="make setup") from None

    return check


def _home() -> str:
    home = Home.from_environment().prepare()
    free = shutil.disk_usage(home.root).free / 2**30
    if free < 2:
        raise TunefarmError(f"{home.root}: {free:.1f} GiB free", hint="Free some disk.")
    return f"{home.root}, {free:.0f} GiB free"


def _journal() -> str:
    from tunefarm.results.journal import Journal

    journal = Journal(Home.from_environment().prepare())
    count = len(journal.jobs())
    journal.close()
    return f"{count} jobs on record"


def _device() -> str:
    from tunefarm.devices.registry import probe_and_register

    return ", ".join(
        f"{d.id} ({d.target.text})" for d in probe_and_register(Home.from_environment().prepare())
    )


def _compiler() -> str:
    """Builds and runs a real kernel, the way candidates are."""
    from tunefarm.measure.selftest import build_and_run

    return build_and_run()


def _cuda() -> str:
    """Not everybody builds for GPUs."""
    from tunefarm.measure.cuda.compiler import cuda_compiler

    try:
        return cuda_compiler()
    except UnsupportedTarget as error:
        return f"none, and none is needed for processors ({error.message}. {error.hint})"


_CHECKS: dict[str, Callable[[], str]] = {
    "python": _python,
    "tvm": _tvm,
    "linker": _linker,
    "ray": _library("ray"),
    "mlflow": _library("mlflow"),
    "onnxruntime": _library("onnxruntime"),
    "farm home": _home,
    "journal": _journal,
    "devices": _device,
    "build and run": _compiler,
    "for GPUs": _cuda,
}


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Check what works here; for what does not, say how to mend it."""
    rows = []
    for name, check in _CHECKS.items():
        try:
            rows.append({"check": name, "ok": True, "found": check(), "mend": ""})
        except TunefarmError as error:
            rows.append({"check": name, "ok": False, "found": error.message, "mend": error.hint})
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            rows.append({"check": name, "ok": False, "found": text, "mend": "make setup"})
        if not as_json:
            _print(rows[-1])
    if as_json:
        show_json({"checks": rows})
    bad = [row["check"] for row in rows if not row["ok"]]
    if bad and as_json:
        sys.exit(JobError.exit_code)
    if bad:
        raise JobError(f"not in order: {', '.join(str(name) for name in bad)}")


def _print(row: dict[str, object]) -> None:
    click.secho("ok   " if row["ok"] else "FAIL ", fg="green" if row["ok"] else "red", nl=False)
    click.echo(f"{row['check']:<14} {row['found']}")
    if row["mend"]:
        click.echo(f"     {'':<14} {row['mend']}")
