"""Which kernels minimal filtering takes for convolutions, and which it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.tvm


def convolution(
    image: tuple[int, ...] = (1, 10, 10, 16),
    filters: tuple[int, ...] = (3, 3, 16, 32),
    *,
    stride: int = 1,
    dilation: int = 1,
    crop: int = 0,
    dtype: str = "float32",
    free: bool = True,
) -> Any:
    """A convolution of an image, read from `crop` rows below its first one."""
    import tvm
    from tvm import te

    rows, columns = (
        (image[axis] - crop - dilation * (filters[axis - 1] - 1) - 1) // stride + 1
        for axis in (1, 2)
    )
    x = te.placeholder(image, dtype, name="x")
    w = te.placeholder(filters, dtype, name="w")
    r, s, c = (te.reduce_axis((0, size), name=n) for n, size in zip("rsc", filters, strict=False))
    groups = image[3] // filters[2]

    def channel(k: Any) -> Any:
        return c if groups == 1 else k // (filters[3] // groups) * filters[2] + c

    y = te.compute(
        (image[0], rows, columns, filters[3]),
        lambda n, i, j, k: te.sum(
            x[n, i * stride + r * dilation + crop, j * stride + s * dilation, channel(k)]
            * w[r, s, c, k],
            axis=[r, s, c],
        ),
        name="y",
    )
    function = te.create_prim_func([x, w, y], index_dtype_override="int64")
    return tvm.IRModule({"main": function.with_attr("layout_free_buffers", [1] if free else [])})


@pytest.mark.parametrize(
    ("image", "filters", "group"),
    [
        ((1, 10, 10, 16), (3, 3, 16, 32), 32),
        ((2, 9, 12, 16), (5, 5, 16, 32), 32),
        ((1, 10, 10, 16), (3, 3, 8, 32), 16),
    ],
)
def test_it_takes_convolutions(
    image: tuple[int, ...], filters: tuple[int, ...], group: int
) -> None:
    from tunefarm.search.kernels.winograd import convolution_of, winograd

    workload = convolution(image, filters)
    found = convolution_of(workload)
    assert found is not None
    assert (found.image, found.taps, found.channels) == (image, filters[0], filters[2])
    assert found.group == group
    rewritten = winograd(workload, 2)["main"]
    assert [p.name for p in rewritten.params] == [p.name for p in workload["main"].params]


@pytest.mark.parametrize(
    "odd",
    [
        {"stride": 2},
        {"dilation": 2},
        {"crop": 1},
        {"dtype": "float16"},
        {"free": False},
        {"filters": (3, 5, 16, 32)},
        {"filters": (1, 1, 16, 32)},
        {"filters": (7, 7, 16, 32)},
    ],
)
def test_it_leaves_other_kernels_alone(odd: dict[str, Any]) -> None:
    from tunefarm.search.kernels.winograd import convolution_of, winograd

    workload = convolution(**odd)
    assert convolution_of(workload) is None
    with pytest.raises(ValueError, match="not a convolution"):
        winograd(workload, 2)
