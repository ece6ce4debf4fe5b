"""Run a command where processes find a GPU of paper.

    python -m tunefarm.measure.cuda.emulator [--arch sm_80] COMMAND [ARGUMENT ...]

What is compiled for a GPU within it can be run within it, then and later: ``tunefarm submit
MODEL --targets cuda``, ``tunefarm artifacts run``, a bundle. Its times are those of emulating.
"""

from __future__ import annotations

import argparse
import os
import sys

from tunefarm.errors import UnsupportedTarget
from tunefarm.home import Home
from tunefarm.measure.cuda.emulator.stand_in import environment


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tunefarm.measure.cuda.emulator",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("--arch", default="sm_80", help="Of the GPU.  [default: sm_80]")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="What to run, and its arguments.")
    given = parser.parse_args()
    if not given.command:
        parser.error("which command?")
    home = Home.from_environment().prepare()
    try:
        os.environ.update(environment(home.paper, given.arch))
    except (OSError, UnsupportedTarget) as error:
        print(f"error: {error}", file=sys.stderr)
        return 4
    try:
        os.execvp(given.command[0], given.command)
    except OSError as error:
        print(f"error: {given.command[0]}: {error.strerror}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
