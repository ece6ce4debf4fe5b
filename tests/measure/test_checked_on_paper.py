"""What a whole model computes where there is no device: in a process that finds a GPU of paper."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.bench import PROTOCOL, imported
from tests.cuda import needs_compiler
from tests.models import cnn
from tunefarm.devices.gpu import completed
from tunefarm.devices.target import parse_target
from tunefarm.frontend.program import Program
from tunefarm.measure.assemble import AssembleRequest, assemble
from tunefarm.measure.cuda.emulator.stand_in import ptx_in
from tunefarm.measure.cuda.on_paper import FAULTS, PaperRequest, _fault, check_on_paper
from tunefarm.measure.expected import ExpectedRequest, make_expected
from tunefarm.measure.requests import CheckRequest
from tunefarm.measure.runner import Runner


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("CUDAError: Race: 2 threads write 0x10 in conv", "Race: 2 threads write 0x10 in conv"),
        ("IllegalAddress: 0x40 of nothing", "IllegalAddress: 0x40 of nothing"),
        ("NeverEnds: they wait for a barrier", "NeverEnds: they wait for a barrier"),
        ("GivenUp: more instructions than it was given", ""),
        ("Unsupported: tex.2d in conv", ""),
        ("RaceCondition of nobody", ""),
        ("", ""),
    ],
)
def test_which_words_are_a_kernels_fault(line: str, fault: str) -> None:
    assert _fault(line) == fault


def test_faults_go_by_the_names_that_they_have() -> None:
    from tunefarm.measure.cuda.emulator import faults

    others = {"EmulatorError", "Unsupported", "GivenUp"}
    known = {n for n, one in vars(faults).items() if isinstance(one, type)}
    assert known - others == set(FAULTS), "one that is new is the kernel's fault, or is not"


@dataclass(frozen=True)
class Built:
    program: Program
    library: Path
    paper: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    directory = tmp_path_factory.mktemp("model")
    target = completed(parse_target("cuda:arch=sm_80"))
    program = imported(directory, cnn(directory / "cnn.onnx", size=8), target)
    library, paper = directory / "model.so", directory / "paper"
    assemble(AssembleRequest(program.module, (), (), target, library, ptx_in(paper)))
    return Built(program, library, paper)


def request_of(built: Built) -> PaperRequest:
    program = built.program
    file = program.directory / "expected.npz"
    expected = make_expected(
        ExpectedRequest(program.model, program.inputs, 1, PROTOCOL.seeds, file, program.precision)
    )
    check = CheckRequest((built.library,), (), expected, program.inputs, PROTOCOL)
    return PaperRequest(check, "sm_80", built.paper, 300.0)


@pytest.mark.tvm
@needs_compiler
def test_a_model_is_right_or_is_not_and_a_machine_without_a_gpu_can_tell(
    built: Built, tmp_path: Path
) -> None:
    request = request_of(built)
    seen = check_on_paper(request)
    assert seen.parity is not None, seen
    assert seen.parity.passed
    assert seen.parity.max_rel_err < 1e-4
    assert not seen.is_wrong
    with np.load(request.check.expected) as arrays:
        other = {n: a if n == "precision" else a[..., ::-1] for n, a in arrays.items()}
    np.savez(tmp_path / "other.npz", **other)
    check = replace(request.check, expected=tmp_path / "other.npz")
    seen = check_on_paper(replace(request, check=check))
    assert seen.parity is not None, seen
    assert not seen.parity.passed
    assert seen.is_wrong


@pytest.mark.tvm
@needs_compiler
def test_a_kernel_that_faults_says_which_fault_it_was(built: Built, tmp_path: Path) -> None:
    """Its machine code stands for PTX in which stores go to the second half of all addresses."""
    for file in ptx_in(built.paper).glob("*.ptx"):
        text = re.sub(r"(st\.global\.f32\s+\[%rd\d+)\+?\d*\]", r"\1+2147483632]", file.read_text())
        assert text != file.read_text()
        (ptx_in(tmp_path) / file.name).parent.mkdir(exist_ok=True)
        (ptx_in(tmp_path) / file.name).write_text(text)
    request = replace(request_of(built), directory=tmp_path)
    seen = check_on_paper(request)
    assert seen.fault.startswith("IllegalAddress: ")
    assert seen.is_wrong


@pytest.mark.tvm
@needs_compiler
def test_what_nobody_can_tell_is_not_called_wrong(built: Built, tmp_path: Path) -> None:
    request = request_of(built)
    seen = check_on_paper(replace(request, limit_s=0.01))
    assert "takes longer" in seen.untold
    assert not seen.is_wrong
    seen = check_on_paper(replace(request, directory=tmp_path))
    assert seen.untold, "there is no PTX of it"
    assert not seen.is_wrong


@pytest.mark.tvm
@needs_compiler
def test_a_model_is_a_graph_but_where_each_kernel_is_timed(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunefarm.measure.cuda.emulator.stand_in import environment

    assert b"cuda_graph.run_or_capture" in built.library.read_bytes()
    for name, value in environment(built.paper, "sm_80").items():
        monkeypatch.setenv(name, value)
    runner = Runner(2, PROTOCOL.memory_bytes, kind="cuda")
    try:
        seen = runner.check(replace(request_of(built).check, watched=(built.library,)))
    finally:
        runner.close()
    assert seen.parity.passed
    assert seen.in_place is not None
    functions = {one for task in built.program.tasks if task.flops for one in task.functions}
    assert functions <= seen.in_place.functions.keys()
    assert not any("graph" in one for one in seen.in_place.functions)
