"""Which code makes kernels: what changes them changes its digest, and nothing else does."""

from __future__ import annotations

import ast
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command import tunefarm
from tests.cuda import needs_compiler
from tests.results.test_journal import make_job
from tunefarm.devices.device import Device
from tunefarm.devices.gpu import completed
from tunefarm.devices.target import parse_target
from tunefarm.home import Home
from tunefarm.measure import code
from tunefarm.results.facts import JobTarget
from tunefarm.results.journal import Journal

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for room in ("search", "measure"):
        shutil.copytree(ROOT / room, tmp_path / room)
    monkeypatch.setattr(code, "_ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("search/spaces/tensor_tile/engine_text.py", {"cuda"}),
        ("search/spaces/written.py", {"cuda"}),
        ("search/replay.py", {"llvm", "cuda"}),
        ("search/kernels/winograd.py", {"llvm", "cuda"}),
        ("measure/lowering.py", {"llvm", "cuda"}),
        ("measure/cpu_passes.py", {"llvm", "cuda"}),
        ("measure/cuda/passes.py", {"cuda"}),
        ("measure/cuda/source.py", {"cuda"}),
        ("measure/cuda/nvrtc.py", {"cuda"}),
        ("search/strategies/guided.py", set()),
        ("search/proposer.py", set()),
        ("measure/model.py", set()),
    ],
)
def test_what_writes_kernels_counts(copy: Path, file: str, changes: set[str]) -> None:
    def seen() -> dict[str, str]:
        code._digest.cache_clear()
        return {kind: code.code_of(kind) for kind in ("llvm", "cuda")}

    before = seen()
    assert before == seen()
    with (copy / file).open("a") as text:
        text.write("\n# other\n")
    after = seen()
    assert {kind for kind in before if before[kind] != after[kind]} == changes
    code._digest.cache_clear()


@pytest.mark.parametrize("file", ["measure/model.py", "search/strategies/guided.py", "later.py"])
def test_any_code_makes_another_tunefarm(copy: Path, file: str) -> None:
    def seen() -> str:
        code._digest.cache_clear()
        return code.whole_code.__wrapped__()

    before = seen()
    assert before == seen()
    with (copy / file).open("a") as text:
        text.write("\n# other\n")
    assert seen() != before
    code._digest.cache_clear()


def test_the_same_code_elsewhere_is_the_same(copy: Path) -> None:
    there = code.code_of("cuda")
    assert len(there) == 8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "_ROOT", ROOT)
        assert code.code_of("cuda") == there


def test_nothing_that_writes_kernels_asks_what_only_proposes() -> None:
    """Or a change there would change kernels, and no digest."""
    proposing = {f"tunefarm.search.{name}" for name in code._PROPOSING}
    assert {(ROOT / "search" / f"{name}.py").exists() for name in code._PROPOSING} == {True}
    strategies = {one.stem for one in (ROOT / "search" / "strategies").glob("*.py")}
    assert {"guided", "tpe"} < strategies
    proposing |= {f"tunefarm.search.strategies.{name}" for name in strategies}
    proposing |= {"tunefarm.search.strategies"}
    for file in code._files(for_gpus=False):
        tree = ast.parse(file.read_text())
        asked = {one.module for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)}
        assert not asked & proposing, file


def test_whatever_lowers_or_compiles_kernels_counts() -> None:
    """And what that asks in its turn, of the same room."""
    room, counting = "tunefarm.measure", {*code._COMPILING}
    counting |= {f"cuda.{name}" for name in code._FOR_GPUS}
    seen: set[str] = set()
    left = {"lowering", "cuda.cubin"}
    while left:
        seen.add(name := left.pop())
        tree = ast.parse((ROOT / "measure" / f"{name.replace('.', '/')}.py").read_text())
        for one in (one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)):
            module = one.module or ""
            if module == f"{room}.cuda":
                left |= {f"cuda.{alias.name}" for alias in one.names} - seen
            elif module == room:
                left |= {alias.name for alias in one.names} - seen
            elif module.startswith(f"{room}."):
                left |= {module.removeprefix(f"{room}.")} - seen
    gpus = {f"cuda.{name}" for name in ("passes", "compiler", "nvrtc", "nvcc", "source")}
    assert {"cpu_passes", *gpus} <= seen <= counting


@pytest.mark.slow
def test_a_job_is_not_resumed_by_code_that_makes_other_kernels(home: Home, device: Device) -> None:
    journal = Journal(home)
    tools = f"tvm-0.27 {code.CODE}{code.code_of('llvm')}"
    for name, toolchain in (("mine-1", tools), ("other-1", f"tvm-0.27 {code.CODE}00000000")):
        journal.add_job(make_job(job=name), [JobTarget("llvm", device.target, device, toolchain)])
        journal.add_event(name, "interrupted")
    journal.close()
    other, mine = (tunefarm("resume", name) for name in ("other-1", "mine-1"))
    assert other.code == 5
    assert "that this tunefarm would make otherwise (code-00000000 is not code-" in other.err
    assert "submit the model anew" in other.err
    assert mine.code == 4, "it has been measured on a device that is not here"
    assert "would make otherwise" not in mine.err


@pytest.mark.slow
@needs_compiler
def test_a_job_is_not_resumed_by_another_compiler(home: Home, device: Device) -> None:
    journal = Journal(home)
    target = completed(parse_target("cuda:arch=sm_80"))
    tools = f"tvm-0.27 {code.CODE}{code.code_of('cuda')} nvcc-1.2.3"
    nowhere = replace(device, target=target)
    journal.add_job(make_job(job="other-1"), [JobTarget("cuda", target, nowhere, tools)])
    journal.add_event("other-1", "interrupted")
    journal.close()
    other = tunefarm("resume", "other-1")
    assert other.code == 5
    assert "the job with nvcc-1.2.3" in other.err
    assert "TUNEFARM_CUDA_COMPILER" in other.err
