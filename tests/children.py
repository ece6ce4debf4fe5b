"""What the children of `test_process` do."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from tunefarm.errors import InvalidModel


def answer(request: str) -> object:
    if request in ("segfault", "exit", "abort"):
        print("last words", file=sys.stderr, flush=True)
    match request:
        case "pid":
            return os.getpid()
        case "torch":
            try:
                import torch  # type: ignore[import-not-found]

                return str(torch.__version__)
            except ImportError:
                return ""
        case "raise":
            raise ValueError("no")
        case "raise as TVM does":
            import tvm_ffi

            tvm_ffi.load_module("nowhere.so")
        case "threads":
            return os.environ.get("OPENBLAS_NUM_THREADS")
        case "limits":
            return resource.getrlimit(resource.RLIMIT_NOFILE)
        case "refuse":
            raise InvalidModel("refused", hint="a hint")
        case "hang":
            time.sleep(60)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "fall silent":  # in the middle of an answer
            os.write(int(sys.argv[2]), (1000).to_bytes(4, "big") + b"the first part")
            os._exit(4)
        case "abort":
            os.abort()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case str() if request.startswith("kill once "):
            token = Path(request.removeprefix("kill once "))
            if not token.exists():
                token.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return os.getpid()
        case "eat":
            return len(bytearray(2**30))
        case "spawn":
            return subprocess.Popen(["sleep", "60"]).pid
    return None
