"""A compiled model in a program that serves: called by whatever thread has a request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import imported
from tests.models import cnn
from tunefarm.devices.target import parse_target
from tunefarm.measure.assemble import AssembleRequest, assemble

SERVES = """\
import sys, threading
from pathlib import Path
import numpy as np
from tunefarm.measure.model import CompiledModel

model = CompiledModel(Path(sys.argv[1]), kind="llvm")
shape = tuple(map(int, sys.argv[2].split(",")))
requests = [np.random.default_rng(n).random(shape, dtype=np.float32) for n in range(4)]
expected = [model([one])[0] for one in requests]
others = []

def serve(n):
    for _ in range(200):
        if not np.array_equal(model([requests[n]])[0], expected[n]):
            others.append(n)

threads = [threading.Thread(target=serve, args=(n,)) for n in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
assert not np.array_equal(expected[0], expected[1])
print("others:", len(others))
"""


@pytest.mark.tvm
def test_threads_take_turns(tmp_path: Path) -> None:
    """In a process that may die: TVM's virtual machine does, where two are in it."""
    target = parse_target("llvm:num-cores=2")
    program = imported(tmp_path, cnn(tmp_path / "cnn.onnx", size=32), target)
    library = assemble(
        AssembleRequest(program.module, (), (), target, tmp_path / "model.so")
    ).library
    (spec,) = program.inputs
    command = [sys.executable, "-c", SERVES, str(library), ",".join(map(str, spec.shape))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout == "others: 0\n"
