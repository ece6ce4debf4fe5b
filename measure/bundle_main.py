"""Runs the bundle that this file is in: ``python BUNDLE [REPORT]``. Standard library alone."""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile


def main() -> int:
    bundle = os.path.abspath(sys.argv[0])
    if len(sys.argv) > 2 or sys.argv[1:] in (["-h"], ["--help"]):
        print(f"usage: {sys.executable} {sys.argv[0]} [REPORT]", file=sys.stderr)
        return 0 if len(sys.argv) == 2 else 2
    report = os.path.abspath(sys.argv[1] if len(sys.argv) == 2 else bundle + ".report")
    with tempfile.TemporaryDirectory(prefix="tunefarm-runtime-") as directory:
        with zipfile.ZipFile(bundle) as archive:
            names = [n for n in archive.namelist() if n.startswith("runtime/")]
            _check_python(names)
            archive.extractall(directory, names)
        runtime = os.path.join(directory, "runtime")
        sys.path.insert(0, runtime)
        # Children are Pythons of their own.
        os.environ["PYTHONPATH"] = os.pathsep.join([runtime, os.environ.get("PYTHONPATH", "")])
        return _run(bundle, report)


def _check_python(names: list[str]) -> None:
    """The runtime has a part that is compiled for one version of Python."""
    cores = [n for n in names if n.startswith("runtime/tvm_ffi/core.")]
    here = f"cpython-{sys.version_info[0]}{sys.version_info[1]}-"
    if not any(here in one or ".abi3." in one for one in cores):
        versions = ", ".join(one.split(".")[1] for one in cores) or "none"
        raise SystemExit(
            f"this bundle's runtime is for {versions}; this is Python {sys.version.split()[0]}"
        )


def _run(bundle: str, report: str) -> int:
    from pathlib import Path

    from tunefarm.errors import TunefarmError
    from tunefarm.measure.bundle_run import run_bundle

    try:
        made = run_bundle(Path(bundle), Path(report), say=lambda text: print(text, flush=True))
    except TunefarmError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"report: {report} ({len(made.answers)} answers)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
