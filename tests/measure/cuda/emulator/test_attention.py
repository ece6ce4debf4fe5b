"""Attention as one kernel, from the point to the result, on a GPU of paper: held against the same
kernel on the processor. As many again, drawn: `make torture`."""

from __future__ import annotations

import pytest

from tests.cuda import needs_compiler

pytestmark = [pytest.mark.tvm, needs_compiler]

POINT = "attention-tile warps={} down={} keys={} stages={}"


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    from tests.paper_gpu import stack_on_paper
    from tunefarm.devices.gpu import completed
    from tunefarm.devices.target import parse_target

    target = completed(parse_target(f"cuda:arch={getattr(request, 'param', 'sm_80')}"))
    with stack_on_paper(tmp_path_factory.mktemp("paper"), target) as made:
        yield made


def test_scores_come_in_steps_and_in_one(stack) -> None:
    """And end between two steps, or in the middle of a pair."""
    from tests.paper_gpu import checked
    from tests.products import whole_attention

    even = whole_attention("float16", 1, 2, (64, 128, 32, 64))
    checked(
        stack,
        even,
        POINT.format(1, 1, 128, 1),
        POINT.format(4, 1, 32, 3),
        POINT.format(2, 2, 64, 2),
    )
    odd = whole_attention("bfloat16", 2, 1, (50, 71, 40, 24))
    checked(stack, odd, POINT.format(1, 1, 96, 1), POINT.format(1, 1, 16, 4))


def test_what_is_done_to_scores_is_done(stack) -> None:
    """By another tensor for each, in pairs or one by one, and by one that leaves out most."""
    from tests.paper_gpu import checked
    from tests.products import whole_attention

    for keys in (70, 33):
        masked = whole_attention("float16", 1, 2, (40, keys, 16, 32), "mask")
        checked(stack, masked, POINT.format(1, 2, 32, 2))
    causal = whole_attention("bfloat16", 1, 2, (64, 64, 32, 48), "causal")
    checked(stack, causal, POINT.format(1, 1, 16, 2))


@pytest.mark.long
def test_what_is_left_out_leaves_the_rest(stack) -> None:
    """Whole steps of keys, by the lowest number or by infinity, and all keys of a query: the
    largest so far stays, or rises from far below."""
    from tests.paper_gpu import checked
    from tests.products import whole_attention

    for scores in ("lowest", "infinite", "all"):
        module = whole_attention("bfloat16", 1, 1, (20, 100, 16, 16), scores)
        checked(stack, module, POINT.format(1, 1, 32, 2))


def test_queries_that_see_nothing_are_given_nothing(stack) -> None:
    """Where the network says so: elsewhere they are no numbers."""
    from tests.paper_gpu import checked
    from tests.products import whole_attention
    from tunefarm.search.spaces.attention_tile.attention import attention_of

    module = whole_attention("float16", 1, 1, (20, 40, 16, 16), "nothing")
    of = attention_of(module)
    assert of is not None
    assert of.guarded
    checked(stack, module, POINT.format(1, 1, 32, 2))


def test_heads_may_lie_apart(stack) -> None:
    """Keys turned, elements that are read alone, and nothing done to the scores."""
    from tests.paper_gpu import checked
    from tests.products import whole_attention

    checked(
        stack,
        whole_attention("float16", 1, 2, (33, 40, 48, 80), "", apart=True),
        POINT.format(2, 1, 32, 2),
    )
    alone = whole_attention("bfloat16", 1, 1, (20, 31, 30, 14), "scale", apart=True)
    checked(stack, alone, POINT.format(1, 2, 32, 1))


@pytest.mark.long
@pytest.mark.parametrize("stack", ["sm_90"], indirect=True)
def test_hoppers_groups_and_its_copy_engine_are_right(stack) -> None:
    """Heads side by side and apart, steps that go round, and registers that change hands."""
    from tests.paper_gpu import checked
    from tests.products import whole_attention

    beside = whole_attention("float16", 1, 1, (100, 200, 64, 64), "mask")
    one, two = POINT.format(4, 1, 32, 3), POINT.format(8, 1, 64, 4)
    for point in (one, two):
        checked(stack, beside, f"{point} cores=groups", f"{point} cores=groups feed=engine")
    apart = whole_attention("bfloat16", 2, 1, (64, 96, 40, 128), "causal", apart=True)
    point = POINT.format(4, 1, 96, 1) + " cores=groups"
    checked(stack, apart, point, f"{point} feed=engine")
    packed = whole_attention("float16", 2, 3, (96, 96, 40, 40), packed=True)
    checked(stack, packed, POINT.format(4, 1, 32, 2) + " cores=groups feed=engine")
    many = whole_attention("float16", 1, 1, (100, 200, 128, 128), "infinite")
    checked(stack, many, POINT.format(8, 1, 96, 2) + " cores=groups feed=engine")


@pytest.mark.parametrize("stack", ["sm_90"], indirect=True)
@pytest.mark.parametrize(("warps", "keys", "launched"), [(8, 128, 168), (12, 96, 128)])
def test_registers_change_hands_as_far_as_there_are_any(
    stack, warps: int, keys: int, launched: int
) -> None:
    """By the compiler's word: what a thread is launched with, and nothing spills."""
    from tests.paper_gpu import trace_of
    from tests.products import whole_attention

    columns = 128 if warps == 8 else 64
    module = whole_attention("float16", 1, 1, (192, 512, columns, columns))
    point = POINT.format(warps, 1, keys, 2) + " cores=groups feed=engine"
    path, _ = stack.kernel(module)
    built = stack.build(path, stack.target, trace_of(module, point))
    assert built.library is not None, built.failure
    (taken,) = built.library.resources
    assert (taken.registers, taken.spill_bytes) == (launched, 0)
    more, fewer = {168: (240, 24), 128: (160, 24)}[launched]
    assert warps * 32 * more + 128 * fewer <= (warps * 32 + 128) * launched


def test_the_untuned_kernel_is_right_too(stack) -> None:
    from tests.products import whole_attention

    outcome = stack.screened(stack.kernel(whole_attention("float16", 1, 1, (20, 24, 16, 16))))
    assert outcome.failure is None
