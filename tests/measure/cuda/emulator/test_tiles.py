"""Tiles of products for tensor cores, from the point to the result, on a GPU of paper: held against
the same kernel on the processor. As many again, drawn: `make torture`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda import needs_compiler

pytestmark = [pytest.mark.tvm, needs_compiler]

POINT = "tensor-tile cores={} rows={} columns={} depth={} stages={} down={} across={}"


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    from tests.paper_gpu import stack_on_paper
    from tunefarm.devices.gpu import completed
    from tunefarm.devices.target import parse_target

    arch = getattr(request, "param", "sm_80")
    target = completed(parse_target(f"cuda:arch={arch}:precision=tf32"))
    with stack_on_paper(tmp_path_factory.mktemp("paper"), target) as made:
        yield made


def test_products_of_all_types_are_right(stack) -> None:
    """Whichever way operands lie, with tiles that reach beyond the end, several of them and one."""
    from tests.paper_gpu import checked
    from tests.products import product

    halves = product("float16", (100, 72, 136), (False, True), after="bias")
    checked(
        stack,
        halves,
        POINT.format("warps", 64, 32, 32, 3, 2, 1),
        POINT.format("warps", 16, 16, 64, 4, 1, 1) + " band=4",
    )
    point = POINT.format("warps", 64, 64, 32, 4, 2, 2)
    checked(stack, product("bfloat16", (64, 100, 70), (True, False), 2, "add"), point)
    checked(stack, product("int8", (40, 48, 64), (False, True)), point)
    single = POINT.format("warps", 64, 32, 16, 3, 2, 1)
    for turned in (False, True):
        checked(stack, product("float32", (40, 36, 44), (False, turned)), single)


def test_elements_that_lie_alone_are_read_alone(stack) -> None:
    """Images of three channels, and matrices of odd sizes."""
    from tests.paper_gpu import checked
    from tests.products import convolution, product

    point = POINT.format("warps", 64, 32, 32, 3, 2, 1)
    checked(stack, convolution("float16", (11, 9, 3), 40, 3, 2, after="bias"), point)
    checked(stack, product("bfloat16", (33, 35, 17)), point)
    checked(stack, product("float16", (67, 33, 71), (True, True), 2, "add"), f"{point} split=2")


def test_a_single_head_is_a_product(stack) -> None:
    from tests.paper_gpu import checked
    from tests.products import attention

    point = POINT.format("warps", 32, 32, 32, 3, 1, 2)
    checked(stack, attention("float16", 1, 40, 1, 32), point)
    checked(stack, attention("float16", 2, 40, 1, 32), point)


def test_images_are_read_as_matrices(stack) -> None:
    """Padded and with strides, and without either."""
    from tests.paper_gpu import checked
    from tests.products import convolution

    point = POINT.format("warps", 32, 32, 32, 4, 1, 2)
    checked(stack, convolution("float16", (9, 10, 24), 40, 3, 2, after="bias"), point)
    thirds = POINT.format("warps", 32, 32, 48, 4, 1, 2)
    checked(stack, convolution("float16", (7, 7, 48), 64, 1, after="add"), point, thirds)


def test_what_follows_may_have_stages_of_its_own_before_the_product(stack) -> None:
    from tests.paper_gpu import checked
    from tests.products import product

    point = POINT.format("warps", 32, 32, 32, 3, 1, 2)
    checked(stack, product("float16", (40, 48, 64), after="cast"), point)


def test_blocks_that_share_a_sum_add_it_up(stack) -> None:
    from tests.paper_gpu import checked
    from tests.products import product

    point = POINT.format("warps", 32, 32, 32, 3, 1, 2)
    module = product("float16", (32, 48, 600), after="bias")
    checked(stack, module, f"{point} split=4", f"{point} split=16")


@pytest.mark.long
@pytest.mark.parametrize("stack", ["sm_90"], indirect=True)
def test_hoppers_groups_are_right(stack) -> None:
    """Operands that lie along the sum and across it, one group and two, several steps ahead."""
    from tests.paper_gpu import checked
    from tests.products import convolution, product

    two = POINT.format("groups", 128, 96, 64, 4, 8, 1)
    one = POINT.format("groups", 64, 32, 32, 3, 4, 1) + " split=2"
    for turned in ((False, False), (False, True), (True, False), (True, True)):
        module = product("float16", (136, 104, 200), turned, after="bias")
        checked(stack, module, f"{two} feed=engine", *([two] if turned[0] else [one]))
    point = POINT.format("groups", 64, 64, 64, 3, 4, 1)
    batches = product("bfloat16", (64, 64, 128), batches=2)
    checked(stack, batches, point, f"{point} feed=engine")
    checked(stack, product("int8", (64, 96, 160), (False, True)), point, f"{one} feed=engine")
    checked(stack, product("float16", (65, 67, 131), (True, False)), point)
    thirds = POINT.format("groups", 64, 64, 48, 3, 4, 1)
    checked(stack, convolution("float16", (9, 9, 16), 64, 3), point, thirds)


@pytest.mark.long
@pytest.mark.parametrize("stack", ["sm_90"], indirect=True)
def test_hoppers_groups_multiply_words_that_the_engine_rounds(stack) -> None:
    """Along the sum, and across it, where operands change places: one group and two, steps even and
    odd and a single one."""
    from tests.paper_gpu import checked
    from tests.products import product

    two = POINT.format("groups", 128, 96, 32, 3, 8, 1) + " feed=engine"
    module = product("float32", (136, 104, 200), (False, True), after="bias")
    checked(stack, module, two)
    turned = POINT.format("groups", 96, 128, 32, 4, 8, 1) + " feed=engine"
    few = POINT.format("groups", 64, 64, 24, 3, 4, 1) + " feed=engine"
    module = product("float32", (136, 104, 200), after="bias")
    checked(stack, module, turned, few, few.replace(" feed", " split=2 feed"))
    one = few.replace("=24", "=32")
    checked(stack, product("float32", (128, 96, 96), batches=2), f"{one} cluster=2")
    checked(stack, product("float32", (64, 64, 32)), one)


@pytest.mark.long
@pytest.mark.parametrize("stack", ["sm_90"], indirect=True)
def test_blocks_of_a_cluster_have_an_operand_in_common(stack) -> None:
    """Whichever way it lies, in bands and without, with columns that reach beyond the end."""
    from tests.paper_gpu import checked
    from tests.products import attention, product

    point = POINT.format("groups", 64, 128, 64, 3, 4, 1) + " feed=engine cluster=2"
    for turned in ((False, False), (True, True)):
        module = product("float16", (256, 200, 328), turned, after="bias")
        checked(stack, module, point.replace(" feed", " band=4 feed"))
    checked(stack, attention("bfloat16", 2, 128, 2, 64), point)
    few = POINT.format("groups", 64, 64, 64, 3, 4, 1) + " feed=engine cluster="
    checked(stack, product("int8", (256, 64, 400), (False, True)), f"{few}2")
    checked(stack, product("float16", (256, 64, 200), (False, True)), f"{few}4")


@pytest.mark.parametrize("stack", ["sm_90"], indirect=True)
def test_hoppers_copy_engine_finds_heads_and_pixels(stack) -> None:
    """Where they lie, in tiles that reach beyond their ends, and whoever has which tile."""
    from tests.paper_gpu import checked
    from tests.products import attention, convolution

    point = POINT.format("groups", 64, 64, 64, 3, 4, 1) + " feed=engine"
    checked(stack, attention("float16", 2, 200, 2, 64), point.replace(" feed", " band=4 feed"))
    checked(stack, convolution("float16", (7, 7, 72), 64, 1, after="add"), point)


def test_factors_of_ten_bits_are_told_by_the_library(stack) -> None:
    """And their results are allowed what rounding them costs, which is more than float32's."""
    from tests.paper_gpu import trace_of
    from tests.products import product
    from tunefarm.frontend.dtypes import TF32
    from tunefarm.measure.gate import tolerance

    module = product("float32", (32, 32, 32))
    path, _ = stack.kernel(module)
    traces = {TF32: trace_of(module, POINT.format("warps", 32, 32, 8, 3, 1, 1)), "": ""}
    for multiplies, trace in traces.items():
        built = stack.build(path, stack.target, trace)
        assert built.library is not None
        assert built.library.multiplies == multiplies
    assert tolerance(TF32, 32).relative > 10 * tolerance("float32", 32).relative


@pytest.mark.long
@pytest.mark.parametrize("stack", ["sm_80", "sm_90"], indirect=True)
def test_a_quantised_networks_products_are_right(stack, tmp_path: Path) -> None:
    """Images of integers around which there is what stands for nothing, and what follows them."""
    from tests.bench import imported
    from tests.paper_gpu import checked
    from tests.quantised_models import dynamic, network
    from tunefarm.search import replay
    from tunefarm.search.spaces.tensor_tile.space import TENSOR_TILES

    pairs = []
    for make, most in ((network, 5), (dynamic, 1)):
        directory = tmp_path / make.__name__
        directory.mkdir()
        program = imported(directory, make(directory / "m.onnx"), stack.target)
        tasks = [task for task in program.tasks if "_lines" in task.name]
        pairs += [(program, task) for task in tasks[:most]]
    assert len(pairs) == 5 + 1
    for program, task in pairs:
        workload = replay.load_workload(program.workload(task.id))
        space = TENSOR_TILES.space(workload, stack.target)
        assert space is not None, task.name
        best = min(space.modelled(), key=lambda one: one.seconds)
        proposal = space.realise(best.point, 0)
        assert proposal is not None
        checked(stack, workload, replay.completed_by(proposal.trace))
