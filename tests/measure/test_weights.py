"""A model's weights in a file of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from tunefarm.measure import weights

DTYPES = st.sampled_from(["float32", "float16", "int8", "int64", "bool"])
ARRAYS = st.lists(
    DTYPES.flatmap(lambda d: arrays_of.arrays(d, arrays_of.array_shapes(max_dims=4, max_side=5))),
    max_size=5,
)


@pytest.mark.slow
@settings(max_examples=50)
@given(ARRAYS)
def test_what_is_written_is_loaded_from_aligned_places(tmp_path_factory, arrays) -> None:
    path = tmp_path_factory.mktemp("weights") / "model.weights"
    weights.write(path, arrays)
    loaded = weights.load(path)
    assert len(loaded) == len(arrays)
    for got, wanted in zip(loaded, arrays, strict=True):
        assert got.dtype == wanted.dtype
        assert got.tobytes() == wanted.tobytes()
        assert got.shape == wanted.shape
        assert got.ctypes.data % weights.ALIGNMENT == 0
    assert not list(path.parent.glob(".*")), "nothing half-written is left"


@given(st.binary(max_size=200))
def test_other_files_are_refused(data: bytes) -> None:
    memory = weights.room(len(data))
    memory[:] = data
    with pytest.raises(ValueError, match="weights"):
        weights.arrays(memory)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.weights"
    weights.write(path, [np.ones((100, 100), "float32")])
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(ValueError, match="outside"):
        weights.load(path)
