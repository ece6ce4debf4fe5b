"""Attention of bfloat16 in matrix registers: one kernel, and the right result, however a network
has it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.bench import Bench, needs
from tests.frontend import test_relax_attention as attentions
from tunefarm.devices.target import parse_target
from tunefarm.frontend.importer import ImportRequest, run_import
from tunefarm.frontend.program import Program, TuningTask, load_program

pytestmark = pytest.mark.tvm

ROUNDING = parse_target("llvm:mcpu=sapphirerapids:num-cores=2:precision=bfloat16")


@pytest.fixture
def attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Imports a network with attention of a kind, and sizes."""

    def imported(
        kind: str, tokens: int, size: int = 16, heads: int = 3, target=ROUNDING
    ) -> tuple[Program, TuningTask]:
        sizes = {"TOKENS": tokens, "SIZE": size, "HEADS": heads, "HIDDEN": size * heads}
        for name, value in sizes.items():
            monkeypatch.setattr(attentions, name, value)
        model = tmp_path / "m.onnx"
        model.write_bytes(attentions.network(kind).SerializeToString())
        run_import(ImportRequest(model, tmp_path / "program", target))
        program = load_program(tmp_path / "program")
        (task,) = (one for one in program.tasks if one.name == "attention")
        return program, task

    return imported


@pytest.mark.parametrize(
    ("kind", "tokens", "size"),
    [
        *((kind, 48, 16) for kind in ("plain", "batches", "scaled", "masked", "chosen", "factor")),
        *((kind, 32, 16) for kind in ("by", "shared", "packed", "grouped", "less", "more")),
        *(("turned", tokens, 16) for tokens in (32, 38)),  # neighbours are far apart
        *((kind, 37, 16) for kind in ("plain", "masked", "chosen", "shared")),  # no whole registers
        *(("plain", tokens, size) for tokens, size in ((16, 64), (100, 40), (64, 96), (130, 34))),
    ],
)
def test_attention_in_matrix_registers_is_right(
    tmp_path: Path, workers, attention, kind: str, tokens: int, size: int
) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    needs("amx_bf16")
    program, task = attention(kind, tokens, size)
    bench = Bench(program, task, ROUNDING, workers, tmp_path)
    space = design_space(bench.workload, ROUNDING)
    known = sorted(space.modelled(), key=lambda one: one.seconds)
    for place, one in enumerate([known[0], known[-1], *random.Random(0).sample(known, 2)]):
        proposal = space.realise(one.point, 0)
        assert proposal is not None
        assert space.locate(proposal.trace) == one.point
        assert (replay.completed_by(proposal.trace) or "").startswith("matrix-attention")
        bench.check(proposal, str(place))


def test_every_point_has_registers_that_are_there_and_multiplies(attention) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    program, task = attention("plain", 100, 40)
    workload = replay.load_workload(program.workload(task.id))
    space = design_space(workload, ROUNDING)
    known = space.modelled()
    assert len(known) > 10
    for one in known:
        proposal = space.realise(one.point, 0)
        assert proposal is not None
        text = str(replay.scheduled_function(workload, ROUNDING, proposal.trace))
        registers = {int(n) for n in _numbers(text, "tilezero")}
        assert registers <= set(range(8))
        assert "tdpbf16ps" in text


def _numbers(text: str, instruction: str) -> list[str]:
    import re

    return re.findall(rf'{instruction}", T\.int8\((\d+)\)', text)
