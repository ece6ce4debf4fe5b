"""Kernels from the schedule to the result, on a GPU of paper: TVM's lowering, NVIDIA's compiler,
TVM's CUDA runtime, the process that measures. What they compute is held against the processor."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.cuda import needs_compiler
from tunefarm.errors import DeviceLost, FailureKind

pytestmark = [pytest.mark.tvm, needs_compiler]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory):
    from tests.paper_gpu import stack_on_paper

    with stack_on_paper(tmp_path_factory.mktemp("paper")) as made:
        yield made


def likeliest(module, kinds: tuple[str, ...] = ("", "cuda-tensorcore")) -> list[str]:
    """The first schedule of each sketch for those kinds of cores."""
    from tests.paper_gpu import TARGET
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    space = design_space(module, TARGET)
    found: dict[int, str] = {}
    tried: Counter[int] = Counter()
    for one in sorted(space.modelled(), key=lambda one: one.seconds):
        sketch = one.point.sketch
        if sketch in found or tried[sketch] == 8:
            continue
        tried[sketch] += 1
        if (proposal := space.realise(one.point, 1)) is not None:
            found[sketch] = proposal.trace
    return [trace for trace in found.values() if replay.rules_of(trace) in kinds]


@pytest.mark.long
@pytest.mark.parametrize(
    ("dtype", "size", "kinds"),
    [
        ("float32", 64, ("",)),
        ("float16", 128, ("", "cuda-tensorcore")),
        ("bfloat16", 64, ("cuda-tensorcore",)),
    ],
)
def test_products_are_right_whatever_their_schedule(stack, dtype: str, size: int, kinds) -> None:
    """Plain and tensor cores, with and without operands on their way."""
    from tests.paper_gpu import product

    kernel = stack.kernel(module := product(dtype, size, 128, size))
    traces = likeliest(module, kinds)
    assert len(traces) >= 3 * len(kinds), "as it is, and two and three steps ahead"
    for trace in ["", *traces]:
        outcome = stack.screened(kernel, trace)
        assert outcome.failure is None, (outcome.failure, trace)


@pytest.mark.long
def test_an_operand_that_lies_the_other_way_is_copied_right(stack) -> None:
    """TVM copies a vector's first element's neighbours in its other elements' place."""
    from tests.paper_gpu import product

    kernel = stack.kernel(module := product("float16", 64, 64, 64, turned=True))
    traces = likeliest(module, ("cuda-tensorcore",))
    assert len(traces) >= 3
    for trace in traces:
        outcome = stack.screened(kernel, trace)
        assert outcome.failure is None, (outcome.failure, trace)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_are_summed_right(stack, dtype: str) -> None:
    from tvm import te, topi

    from tests.paper_gpu import workload

    x = te.placeholder((32, 100), dtype, "x")
    wide = topi.nn.softmax(topi.cast(x, "float32"), axis=1)
    kernel = stack.kernel(workload([x, wide if dtype == "float32" else topi.cast(wide, dtype)]))
    assert stack.screened(kernel).failure is None


def test_a_kernel_that_faults_ends_its_process_and_no_other_kernel(stack) -> None:
    from tvm import te

    from tests.paper_gpu import product, workload

    x = te.placeholder((64,), "float32", "x")
    beyond = te.compute((64,), lambda i: x[i + te.const(1 << 20, "int32")], "y")
    good = stack.kernel(product("float32", 32, 32, 32))
    bad, facts = stack.kernel(workload([x, te.compute((64,), lambda i: x[i], "y")]))
    assert stack.screened((bad, facts)).failure is None
    import tvm

    bad.with_name("beyond.json").write_text(tvm.ir.save_json(workload([x, beyond])))
    failed = stack.screened((bad.with_name("beyond.json"), facts)).failure
    assert failed is not None
    assert failed.kind is FailureKind.CRASH
    assert "IllegalAddress: kernel_kernel: ld.global" in failed.message
    after = stack.screened(good)
    assert after.failure is None, "the fault has spoilt the next one"
    assert after.screening is not None
    assert min(after.screening.samples) > 0


def test_nobody_is_blamed_for_a_gpu_that_is_gone(stack, tmp_path, monkeypatch) -> None:
    """It is looked at after every fault, before that is believed."""
    from tests.paper_gpu import PROTOCOL, TARGET, product
    from tunefarm.measure import faults
    from tunefarm.measure.cuda.emulator.stand_in import GONE
    from tunefarm.measure.requests import RaceRequest, ScreenRequest
    from tunefarm.measure.runner import Runner
    from tunefarm.search.candidate import UNTUNED

    path, facts = stack.kernel(product("float32", 32, 32, 32))
    built = stack.build(path, TARGET, UNTUNED)
    gone = tmp_path / "gone"
    monkeypatch.setenv(GONE, str(gone))
    monkeypatch.setattr(faults, "TRIES", 1)
    gpu = Runner(2, PROTOCOL.memory_bytes, kind="cuda")
    entries = (("one", built.library), ("two", built.library))
    race = RaceRequest(((facts, entries),), PROTOCOL, 3, 0)
    screen = ScreenRequest(built.library, facts, PROTOCOL, None)
    try:
        assert gpu.screen(screen).failure is None
        gone.touch()
        asked = (lambda: gpu.screen(screen), lambda: gpu.race(race), gpu.ready)
        for ask in (asked[0], *asked):  # the first while its process runs
            with pytest.raises(DeviceLost, match="fallen off its bus"):
                ask()
        assert gpu.canary() is None
        gone.unlink()
        gpu.ready()
        assert gpu.screen(screen).failure is None
        raced = gpu.race(race)
        assert not raced.faults
        assert raced.samples[facts.task].keys() == {"one", "two"}
    finally:
        gpu.close()


def test_a_kernel_that_computes_something_else_is_told(stack) -> None:
    import tvm
    from tvm import te

    from tests.paper_gpu import workload

    x = te.placeholder((64,), "float32", "x")
    path, facts = stack.kernel(workload([x, te.compute((64,), lambda i: x[i] * 2.0, "y")]))
    other = path.with_name("other.json")
    other.write_text(tvm.ir.save_json(workload([x, te.compute((64,), lambda i: x[i] * 2.5, "y")])))
    failed = stack.screened((other, facts)).failure
    assert failed is not None
    assert failed.kind is FailureKind.WRONG_RESULT


def test_the_gpu_is_found_as_any_other(stack) -> None:
    from tests.paper_gpu import ARCH, TARGET
    from tunefarm.devices.here import device_here
    from tunefarm.devices.target import make_target

    device = device_here(make_target("cuda", {}))
    assert device.target == TARGET
    assert device.id.startswith(f"cuda-{ARCH}-")
    assert device.uuid.startswith("GPU-")
    conditions = stack.gpu.conditions()
    assert conditions["temperature_c"] > 0
    assert {"clock_sm_mhz", "power_w", "throttle_reasons"} <= set(conditions)
    assert stack.gpu.canary() > 0


def test_what_stands_in_for_a_library_has_all_that_tvm_asks_of_it() -> None:
    """An upgrade of TVM may ask for more."""
    import re
    import shutil
    import subprocess
    from pathlib import Path

    import tvm

    from tunefarm.measure.cuda.emulator.driver import _TYPES, Driver
    from tunefarm.measure.cuda.emulator.stand_in import FUNCTIONS

    ours = {name for names in FUNCTIONS.values() for name in names}
    assert ours == set(_TYPES)
    assert all(hasattr(Driver, name) for name in ours)
    assert shutil.which("nm"), "of the binutils, as ld is"
    library = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    said = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
    )
    asked = {one.partition("@")[0] for one in re.findall(r"\bU (cu(?:da)?[A-Z]\S*)", said.stdout)}
    assert asked <= ours, asked - ours
