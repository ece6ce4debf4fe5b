"""A child that answers, fails, hangs, crashes and is killed: each is told apart."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tunefarm.errors import InvalidModel
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout

HANDLER = "tests.children:answer"


@pytest.fixture
def child():
    with Child(HANDLER) as one:
        yield one


def test_it_answers_and_stays_warm(child: Child) -> None:
    first = child.call("pid", 10)
    assert child.call("pid", 10) == first != os.getpid()
    assert child.starts == 1


def test_its_exceptions_come_back_with_their_type(child: Child) -> None:
    with pytest.raises(ChildError) as caught:
        child.call("raise", 10)
    assert caught.value.type_name == "ValueError"
    assert "Traceback" in caught.value.detail
    assert child.call("pid", 10)


def test_an_error_of_tvm_says_where_and_reads_no_debug_information_for_it(child: Child) -> None:
    """Names of functions that nobody gave it, but looked up, are at line 0 of no known file."""
    with pytest.raises(ChildError) as caught:
        child.call("raise as TVM does", 10)
    assert "nowhere.so" in caught.value.message
    assert 'library_module_dynamic_lib.cc", line' in caught.value.detail
    assert "<unknown>" not in caught.value.detail
    assert child.call("limits", 10) == resource.getrlimit(resource.RLIMIT_NOFILE)


@pytest.mark.slow
def test_threads_of_libraries_are_one_unless_somebody_says(monkeypatch) -> None:
    def threads(**options: Any) -> str | None:
        with Child(HANDLER, **options) as one:
            return one.call("threads", 10)

    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert threads() == "1"
    assert threads(torch=True) is None
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert threads() == "3"
    assert threads(env={"OPENBLAS_NUM_THREADS": "2"}) == "2"


def test_our_own_errors_come_back_as_themselves(child: Child) -> None:
    with pytest.raises(InvalidModel) as caught:
        child.call("refuse", 10)
    assert caught.value.hint == "a hint"


@pytest.mark.slow
def test_a_hang_is_ended_and_the_next_call_is_served(child: Child) -> None:
    child.warm()
    started = time.monotonic()
    with pytest.raises(ChildTimeout):
        child.call("hang", 0.3)
    assert time.monotonic() - started < 5
    assert child.call("pid", 10)
    assert child.starts == 2


@pytest.mark.slow
def test_it_stands_still_until_it_is_asked_something(child: Child) -> None:
    child.freeze()  # of no consequence: it does not run
    child.start()
    child.freeze()  # before it is ready
    pid = child.call("pid", 10)
    for _ in range(2):
        child.freeze()
        assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    assert child.call("pid", 10) == pid
    child.freeze()
    child.kill()
    assert not psutil.pid_exists(pid), "who stands still is ended all the same"
    another = child.call("pid", 10)
    os.kill(another, signal.SIGKILL)
    child.freeze()  # it has ended, or is about to
    assert child.call("pid", 10) not in {pid, another}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "returncode"), [("segfault", -signal.SIGSEGV), ("exit", 3), ("abort", -6)]
)
def test_a_death_is_told_with_its_reason(child: Child, request_: str, returncode: int) -> None:
    with pytest.raises(ChildDied) as caught:
        child.call(request_, 10)
    assert caught.value.returncode == returncode
    assert "last words" in caught.value.tail
    assert child.call("pid", 10)


@pytest.mark.slow
def test_a_death_within_an_answer_is_a_death(child: Child) -> None:
    with pytest.raises(ChildDied) as caught:
        child.call("fall silent", 10)
    assert caught.value.returncode == 4
    assert child.call("pid", 10)


@pytest.mark.slow
def test_who_was_killed_by_somebody_else_is_asked_once_more(child: Child, tmp_path: Path) -> None:
    assert child.insist(f"kill once {tmp_path / 'token'}", 10)
    assert child.starts == 2
    with pytest.raises(ChildDied):
        child.insist("kill", 10)
    assert child.starts == 3, "twice is its own fault; the next call starts another"
    with pytest.raises(ChildDied):
        child.insist("segfault", 10)
    assert child.starts == 4, "so is a crash"


def test_memory_is_limited() -> None:
    with Child(HANDLER, memory_bytes=2**28) as child, pytest.raises(ChildError) as caught:
        child.call("eat", 20)
    assert caught.value.type_name == "MemoryError"


def test_what_it_started_dies_with_it(child: Child, tmp_path: Path) -> None:
    grandchild = child.call("spawn", 10)
    child.kill()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{grandchild}/cmdline").exists() and time.monotonic() < deadline:
        state = Path(f"/proc/{grandchild}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{grandchild}").exists()


@pytest.mark.parametrize(("torch", "version"), [(False, ""), (True, "99")])
def test_it_finds_pytorch_only_where_it_is_to(tmp_path: Path, torch: bool, version: str) -> None:
    """As TVM's runtime would look for it."""
    (tmp_path / "torch.py").write_text("__version__ = '99'\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with Child(HANDLER, env={"PYTHONPATH": path}, torch=torch) as one:
        assert one.call("torch", 10) == version
