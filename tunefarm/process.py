"""A killable child process that answers one request at a time.

Whatever compiles or runs candidates is native code that may crash, hang or eat all memory, so it
lives in a `Child`: long-lived (the compiler stays warm, no start-up on a candidate's path), in a
session of its own (killed as a group), tied to its parent's life, and started again after a fault.
The answers are pickles between two processes of one user on one machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from tunefarm.errors import TunefarmError

_PR_SET_PDEATHSIG = 1
_ONE_EACH = {"OPENBLAS_NUM_THREADS": "1"}
"""Where neither `Child.env` nor the environment says otherwise: NumPy's threads wait for work with
a core in hand, the first tenth of a second."""


_STOP_LIMIT_S, _STOP_POLL_S = 1.0, 0.0002
"""A thread that waits for a disk, or for a driver, stops when that is done."""


class ChildError(Exception):
    """The child answered with an exception of its own; `detail` is its traceback."""

    def __init__(self, message: str, type_name: str, detail: str) -> None:
        super().__init__(message, type_name, detail)  # all three, or it cannot be unpickled
        self.message = message
        self.type_name = type_name
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


class ChildTimeout(Exception):
    """No answer within the limit; the child's process group has been killed."""


class ChildDied(Exception):
    """The child went away before it answered; `returncode` is negative for a signal."""

    def __init__(self, returncode: int, tail: str) -> None:
        super().__init__(returncode, tail)
        self.returncode = returncode
        self.tail = tail

    def __str__(self) -> str:
        return f"{describe_exit(self.returncode)}{': ' + self.tail if self.tail else ''}"


class ChildUnready(ChildDied):
    """It went away, or hung, before it could be asked anything: no request is to blame."""


def describe_exit(returncode: int) -> str:
    """-11 -> "killed by SIGSEGV", 3 -> "exit code 3"."""
    if returncode < 0:
        try:
            return f"killed by {signal.Signals(-returncode).name}"
        except ValueError:
            return f"killed by signal {-returncode}"
    return f"exit code {returncode}"


@dataclass
class Child:
    """One handler function in a process of its own.

    Args:
        handler: ``"package.module:function"``; the function takes the request and returns the
            answer. Importing the module is the warm-up.
        env: variables set before the interpreter starts.
        memory_bytes: growth of the address space allowed to the child after its warm-up.
        torch: whether it is to find PyTorch, where that is installed. TVM's runtime would import
            it: seconds in every child, and on a GPU a second CUDA runtime in the process. Such a
            child is as slow to start as it is, and has its libraries' threads.
    """

    handler: str
    env: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    torch: bool = False
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _connection: Connection | None = None
    _stderr: Any = None
    _warm: bool = False
    _still: bool = False

    def start(self) -> None:
        """Start the process if it does not run; returns before its warm-up is done."""
        if self._process is not None and self._process.poll() is None:
            return
        self.kill()
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
        with ours, theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tunefarm.process",
                    self.handler,
                    str(theirs.fileno()),
                    str(self.memory_bytes or 0),
                    str(os.getpid()),
                    *(["torch"] if self.torch else []),
                ],
                env={**({} if self.torch else _ONE_EACH), **os.environ, **self.env},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                start_new_session=True,
            )
            self._connection = Connection(ours.detach())
        self.starts += 1

    def warm(self, timeout: float = 120.0) -> None:
        """Wait until the handler's module is imported.

        Raises:
            ChildUnready: it cannot be, or takes more than `timeout` seconds.
        """
        self.start()
        assert self._connection is not None
        if self._still:
            self._signal(signal.SIGCONT)
            self._still = False
        if self._warm:
            return
        try:
            self._receive(time.monotonic() + timeout)
        except ChildTimeout:
            raise ChildUnready(-signal.SIGKILL, f"not ready within {timeout:g} s") from None
        except ChildDied as error:
            raise ChildUnready(error.returncode, error.tail) from None
        self._warm = True

    def call(self, request: Any, timeout: float) -> Any:
        """Answer to `request`. The limit, in seconds, starts when the child is warm.

        Raises:
            TunefarmError: the handler raised one; it is raised here again.
            ChildError: the handler raised anything else.
            ChildTimeout: no answer in time.
            ChildDied: the process ended first; `ChildUnready` where it could not even begin.
        """
        self.warm()
        assert self._connection is not None
        try:
            self._connection.send(request)
        except (BrokenPipeError, ConnectionResetError):
            raise self._death() from None
        return self._receive(time.monotonic() + timeout)

    def insist(self, request: Any, timeout: float) -> Any:
        """As `call`, once more where a SIGKILL that is not ours ended the child: whoever sent it,
        the system short of memory or a person, may have meant another one. Not for a child that
        another thread ends."""
        try:
            return self.call(request, timeout)
        except ChildDied as error:
            if error.returncode != -signal.SIGKILL:
                raise
        return self.call(request, timeout)

    def _receive(self, deadline: float) -> Any:
        assert self._connection is not None
        try:
            if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                self.kill()
                raise ChildTimeout(f"no answer from {self.handler} within its limit")
            ok, answer = self._connection.recv()
        except (EOFError, OSError):  # it died before its answer, or within it
            raise self._death() from None
        if not ok:
            raise answer
        return answer

    def _death(self) -> ChildDied:
        assert self._process is not None
        try:
            returncode = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            returncode = -signal.SIGKILL
        tail = self._tail()
        self.kill()
        return ChildDied(returncode, tail)

    def _tail(self, size: int = 2000) -> str:
        if self._stderr is None:
            return ""
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, end - size))
        text: str = self._stderr.read().decode("utf-8", "replace").strip()
        return text

    def freeze(self) -> None:
        """Have it, and what it started, stand still until it is asked something; when this returns
        all its own threads do. Of no consequence where it does not run."""
        if self._process is None or self._still or not self._signal(signal.SIGSTOP):
            return
        self._still = True
        pid, deadline = self._process.pid, time.monotonic() + _STOP_LIMIT_S
        with contextlib.suppress(ChildProcessError):  # it ended meanwhile
            while time.monotonic() < deadline:
                # One that has ended is left for `_process` to be told of.
                either = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
                found = os.waitid(os.P_PID, pid, either)
                if found is not None:
                    if found.si_code == os.CLD_STOPPED:
                        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
                    return
                time.sleep(_STOP_POLL_S)

    @property
    def ended(self) -> int | None:
        """Its exit code (negative for a signal) where it has ended since it was started last."""
        return None if self._process is None else self._process.poll()

    def _signal(self, number: signal.Signals) -> bool:
        """Whether it runs, and was sent it."""
        if self._process is None or self._process.poll() is not None:
            return False
        os.killpg(self._process.pid, number)
        return True

    def kill(self) -> None:
        """End the child and everything it started."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        if self._stderr is not None:
            self._stderr.close()
        self._process = self._connection = self._stderr = None
        self._warm = self._still = False

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died between our start and the line above
        os._exit(1)


def _limit_growth(extra_bytes: int) -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + extra_bytes, now + extra_bytes))


def _spare_debug_information() -> None:
    """Let TVM's errors do without the names of functions in C++; files and lines they have.

    For the first one TVM's library for them (libbacktrace) reads the symbols and the debug
    information of all that is loaded, which takes 0.2 s of a process that is ready within 0.3
    otherwise; and importing TVM has such errors. What it could not open then it never asks for
    again.
    """
    import tvm_ffi

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as file:
        free = file.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        # Without a dot, it is refused for want of a format: the system is not asked for a library,
        # whose list of them it could not open now, and might take for empty from then on.
        tvm_ffi.load_module("no such library")
    except Exception:  # it saves time, and no more
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _serve(handler: str, descriptor: int, memory_bytes: int, parent: int) -> None:
    _die_with_parent(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    connection = Connection(descriptor)
    module, _, name = handler.partition(":")
    gc.disable()  # of what is imported nothing is garbage
    function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    gc.freeze()
    gc.enable()
    if memory_bytes:
        _limit_growth(memory_bytes)
    connection.send((True, None))
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = (True, function(request))
        except TunefarmError as error:
            answer = (False, error)
        except Exception as error:
            answer = (False, ChildError(str(error), type(error).__name__, traceback.format_exc()))
        connection.send(answer)


if __name__ == "__main__":
    # Run as __main__, this module's classes would be pickled under that name: use the real one.
    from tunefarm import process

    if "torch" not in sys.argv[5:]:
        sys.modules["torch"] = None  # type: ignore[assignment]
        process._spare_debug_information()
    process._serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
