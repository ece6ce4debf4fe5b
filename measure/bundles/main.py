"""Runs the bundle that this file is in: ``python BUNDLE [REPORT] [--for 10m]``. Standard library
alone."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import zipfile


def main() -> int:
    bundle = os.path.abspath(sys.argv[0])
    parser = argparse.ArgumentParser(
        prog=f"python {os.path.basename(bundle)}",
        description="Measure what is in this bundle on this machine's device, and write a report.",
        epilog="Ctrl-C and SIGTERM leave a report of what there is; run again it does the rest.",
    )
    parser.add_argument("report", nargs="?", default=f"{bundle}.report", metavar="REPORT")
    parser.add_argument(
        "--for", dest="limit", metavar="TIME", help="Begin no measurement after it, such as 10m."
    )
    given = parser.parse_args()
    heed_signals()
    with tempfile.TemporaryDirectory(prefix="tunefarm-runtime-") as directory:
        with zipfile.ZipFile(bundle) as archive:
            names = [n for n in archive.namelist() if n.startswith("runtime/")]
            _check_python(names)
            archive.extractall(directory, names)
        runtime = os.path.join(directory, "runtime")
        sys.path.insert(0, runtime)
        # Children are Pythons of their own, and are to find this code, wherever they are begun.
        os.environ["PYTHONSAFEPATH"] = "1"
        os.environ["PYTHONPATH"] = os.pathsep.join([runtime, os.environ.get("PYTHONPATH", "")])
        return _run(bundle, os.path.abspath(given.report), given.limit)


def heed_signals() -> None:
    """Whoever ends this, by Ctrl-C or as batch systems do when the time is over, gets a report of
    what there is; also where a shell has begun it in the background, and had it ignore Ctrl-C."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.default_int_handler)


def _check_python(names: list[str]) -> None:
    """The runtime has a part that is compiled for one version of Python."""
    cores = [n for n in names if n.startswith("runtime/tvm_ffi/core.")]
    here = f"cpython-{sys.version_info[0]}{sys.version_info[1]}-"
    if not any(here in one or ".abi3." in one for one in cores):
        versions = ", ".join(one.split(".")[1] for one in cores) or "none"
        raise SystemExit(
            f"this bundle's runtime is for {versions}; this is Python {sys.version.split()[0]}"
        )


def _run(bundle: str, report: str, limit: str | None) -> int:
    import math
    from pathlib import Path

    from tunefarm.durations import seconds_of
    from tunefarm.errors import TunefarmError
    from tunefarm.measure.bundles.run import run_bundle

    try:
        limit_s = math.inf if limit is None else seconds_of(limit)
    except ValueError as error:
        print(f"Error: --for: {error}", file=sys.stderr)
        return 2

    def say(text: str) -> None:
        print(text, flush=True)

    try:
        made = run_bundle(Path(bundle), Path(report), say, limit_s=limit_s)
    except TunefarmError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"report: {report} ({len(made.answers)} answers)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
