"""What a kernel is known to need."""

from __future__ import annotations

import dataclasses

import pytest

from tunefarm.frontend.program import ATTENTION, TensorSpec, TuningTask


def task(
    image: tuple[int, ...],
    filters: tuple[int, ...],
    result: tuple[int, ...],
    kinds: tuple[str, str] = ("float32", "float32"),
) -> TuningTask:
    args = tuple(
        TensorSpec("a", shape, kind)
        for shape, kind in zip((image, filters, result), (*kinds, "float32"), strict=True)
    )
    return TuningTask("k", "conv2d", ("f",), 1, 600.0, 1, args, (1,))


@pytest.mark.parametrize(
    ("image", "filters", "result", "flops"),
    [
        ((1, 14, 14, 16), (3, 3, 16, 32), (1, 14, 14, 32), 100.0),
        ((1, 14, 14, 16), (5, 5, 8, 32), (1, 10, 10, 32), 100.0),
        ((1, 14, 14, 16), (3, 3, 16, 32), (1, 7, 7, 32), 600.0),
        ((1, 14, 14, 16), (1, 1, 16, 32), (1, 14, 14, 32), 600.0),
        ((1, 14, 14, 16), (3, 3, 1, 16), (1, 14, 14, 16), 600.0),
        ((1, 64), (64, 40), (1, 40), 600.0),
    ],
    ids=["same", "valid", "strided", "one tap", "depthwise", "dense"],
)
def test_minimal_filtering_counts_where_it_fits(
    image: tuple[int, ...], filters: tuple[int, ...], result: tuple[int, ...], flops: float
) -> None:
    assert task(image, filters, result).fewest_flops() == flops


@pytest.mark.parametrize(
    ("kinds", "together", "taps", "flops"),
    [
        (("int16", "int16"), (2,), 3, 100.0),
        (("int16", "int16"), (2,), 1, 300.0),
        (("uint8", "int8"), (2, 2), 3, 100.0),
        (("uint8", "int8"), (2, 2), 1, 150.0),
        (("uint8", "int8"), (4,), 3, 150.0),
    ],
)
def test_it_counts_for_integers_that_are_multiplied_in_pairs(
    kinds: tuple[str, str], together: tuple[int, ...], taps: int, flops: float
) -> None:
    filters = (taps, taps, 4, 32, *together)
    assert task((1, 14, 14, 16), filters, (1, 14, 14, 32), kinds).fewest_flops() == flops


@pytest.mark.parametrize(("taps", "flops"), [(3, 18.75), (1, 18.75)])
def test_matrix_registers_do_more_than_filtering_saves(taps: int, flops: float) -> None:
    one = task((1, 14, 14, 16), (taps, taps, 4, 32, 4), (1, 14, 14, 32), ("uint8", "int8"))
    assert one.fewest_flops(("amx_int8", "avx2")) == flops
    assert one.float_flops(("avx2",)) == 150.0


def test_products_of_bfloat16_are_in_matrix_registers_or_in_pairs() -> None:
    """Which have their weights in pairs; what only reads and writes such numbers is none."""
    image, kinds = (1, 14, 14, 16), ("bfloat16", "bfloat16")
    product = task(image, (1, 1, 8, 32, 2), (1, 14, 14, 32), kinds)
    single = task(image, (3, 3, 1, 16), image, kinds)
    assert product.fewest_flops(("amx_bf16",)) == 600.0 / 16
    assert product.fewest_flops(("avx512_bf16",)) == 600.0 / 2
    assert product.fewest_flops(("amx_int8",)) == 600.0
    assert single.fewest_flops(("amx_bf16", "avx512_bf16")) == 600.0


def test_so_are_those_of_attention() -> None:
    """Whose operands are all tensors, in rows."""
    rows, kinds = (1, 128, 64), ("bfloat16", "bfloat16")
    one = task(rows, rows, rows, kinds)
    assert one.fewest_flops(("amx_bf16",)) == 600.0
    assert dataclasses.replace(one, name=ATTENTION).fewest_flops(("amx_bf16",)) == 600.0 / 16


@pytest.mark.parametrize(
    ("kinds", "shapes", "share"),
    [
        (("uint8", "uint8"), ((4, 1024), (4, 1024)), 1 / 16),
        (("uint8", "int8"), ((4, 1024), (4096,)), 1 / 64),  # a fourth of it as integers go
        (("uint8", "float32"), ((4, 1024), (4, 1024)), 1.0),
        (("uint8", "uint8"), ((4, 1024), (4, 512)), 1.0),
        (("uint8", "uint8"), ((4, 16), (4, 16)), 1.0),
    ],
)
def test_a_table_has_256_results(
    kinds: tuple[str, str], shapes: tuple[tuple[int, ...], ...], share: float
) -> None:
    read, made = (TensorSpec("", s, k) for s, k in zip(shapes, kinds, strict=True))
    scalar = TensorSpec("", (1, 1), "float32")
    one = TuningTask("k", "quantize", ("f",), 1, 600.0, 1, (read, scalar, made), (1,))
    assert one.fewest_flops() == 600.0 * share
