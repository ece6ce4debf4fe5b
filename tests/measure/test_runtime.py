"""The runtime is imported without its compiler, and without what that would ask for in vain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.tvm

_RECORDED = """
import json, os, sys
import tvm_ffi
asked = []
plain = tvm_ffi.core._object_type_key_to_index
def recorded(name):
    index = plain(name)
    asked.append((name, index))
    return index
tvm_ffi.core._object_type_key_to_index = recorded
{imported}
import tvm
print(json.dumps({{
    "in_vain": [name for name, index in asked if index is None],
    "found": len(asked),
    "restored": tvm_ffi.core._object_type_key_to_index is recorded,
    "runtime_only": tvm.base._RUNTIME_ONLY,
    "threads": os.environ.get("TVM_NUM_THREADS"),
}}))
"""


def imported(how: str, **env: str) -> dict[str, Any]:
    """What a fresh process has seen of it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TVM_")}
    command = [sys.executable, "-c", _RECORDED.format(imported=how)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**kept, **env})
    found: dict[str, Any] = json.loads(done.stdout)
    return found


OURS = "from tunefarm.measure.runtime import import_runtime; import_runtime(3)"


def test_nothing_is_asked_for_in_vain() -> None:
    plain = imported("import tvm", TVM_USE_RUNTIME_LIB="1")
    assert plain["in_vain"], "else this is needed no more"
    found = imported(OURS)
    assert found["in_vain"] == []
    assert found["found"] == plain["found"] - len(plain["in_vain"]), "all others are registered"
    assert found["restored"]
    assert found["runtime_only"]
    assert found["threads"] == "3"


def test_the_environment_has_the_last_word() -> None:
    assert imported(OURS, TVM_NUM_THREADS="1")["threads"] == "1"


def test_of_another_version_nothing_is_exchanged() -> None:
    """One without that function: this one fails by itself then, and not for us."""
    with pytest.raises(subprocess.CalledProcessError) as raised:
        imported(f"del tvm_ffi.core._object_type_key_to_index; {OURS}")
    last = raised.value.stderr.splitlines()[-1]
    assert "_object_type_key_to_index" in last
    assert "tvm_ffi/registry.py" in raised.value.stderr


def test_what_is_there_already_is_left_alone() -> None:
    found = imported(f"import tvm; {OURS}", TVM_USE_RUNTIME_LIB="1")
    assert found["in_vain"], "it was imported before"
    assert found["threads"] is None


def test_two_threads_import_it_once_and_leave_nothing_behind() -> None:
    both = (
        "import threading\n"
        "from tunefarm.measure.runtime import import_runtime\n"
        "two = [threading.Thread(target=import_runtime, args=(2,)) for _ in range(2)]\n"
        "[one.start() for one in two]\n"
        "[one.join() for one in two]"
    )
    found = imported(both)
    assert found["restored"]
    assert found["in_vain"] == []
