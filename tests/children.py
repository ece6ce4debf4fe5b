"""What the children of `test_process` do."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time

from tunefarm.errors import InvalidModel


def answer(request: str) -> object:
    if request in ("segfault", "exit", "abort"):
        print("last words", file=sys.stderr, flush=True)
    match request:
        case "pid":
            return os.getpid()
        case "raise":
            raise ValueError("no")
        case "refuse":
            raise InvalidModel("refused", hint="a hint")
        case "hang":
            time.sleep(60)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "abort":
            os.abort()
        case "eat":
            return len(bytearray(2**30))
        case "spawn":
            return subprocess.Popen(["sleep", "60"]).pid
    return None
