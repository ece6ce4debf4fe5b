"""A model's builds in a real process, beside one that takes it down."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.bench import imported
from tests.models import cnn
from tunefarm.devices.target import parse_target
from tunefarm.measure import weights
from tunefarm.measure.assemble import AssembleRequest, assemble
from tunefarm.measure.faults import FAULTS
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import ModelRequest
from tunefarm.measure.runner import Runner
from tunefarm.process import ChildDied

pytestmark = pytest.mark.tvm
PROTOCOL = Protocol(model_rounds=3, tail_calls=20)


def dies_when_loaded(path: Path) -> Path:
    source = path.with_suffix(".s")
    # To begin with, it calls what lies at the address 1.
    source.write_text('.section .init_array,"aw"\n.quad 1\n')
    subprocess.run(["as", source, "-o", path.with_suffix(".o")], check=True)
    subprocess.run(["ld", "-shared", path.with_suffix(".o"), "-o", path], check=True)
    return path


@pytest.mark.long
def test_a_previous_build_that_takes_the_process_down_is_left_out_and_no_other(
    tmp_path: Path,
) -> None:
    target = parse_target("llvm:num-cores=2")
    program = imported(tmp_path, cnn(tmp_path / "cnn.onnx", size=8), target)
    library = tmp_path / "tuned.so"
    assemble(AssembleRequest(program.module, (), (), target, library))
    base = tmp_path / "base.so"
    shutil.copy(library, base)
    shutil.copy(weights.beside(library), weights.beside(base))
    deadly = dies_when_loaded(tmp_path / "previous.so")
    runner = Runner(2, Protocol().memory_bytes)
    try:
        for previous in (base, deadly):
            for process in range(3):
                request = ModelRequest(base, library, program.inputs, PROTOCOL, process, previous)
                found = runner.model(request)
                ran = {"base", "tuned", *(["previous"] if previous is base else [])}
                assert set(found.samples) == ran
                assert all(len(samples) == 3 for samples in found.samples.values())
                assert found.cold.build in ran
                assert found.cold.peak_bytes > 20e6
                assert len(found.tail) == 20
        with pytest.raises(FAULTS) as raised:
            runner.model(ModelRequest(base, deadly, program.inputs, PROTOCOL, 0))
        assert isinstance(raised.value, ChildDied)
    finally:
        runner.close()
