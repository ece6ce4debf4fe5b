"""What an artifact is given."""

from __future__ import annotations

import numpy as np
import pytest

from tunefarm.errors import UsageError
from tunefarm.results.loader import LoadedModel


def test_inputs_are_laid_out_and_keep_their_shapes() -> None:
    """A scalar, too, which has no axis."""
    model = LoadedModel.__new__(LoadedModel)
    model.inputs = [
        {"name": "x", "shape": [2, 3], "dtype": "float32"},
        {"name": "scale", "shape": [], "dtype": "float32"},
    ]
    x = np.arange(6, dtype=np.float32).reshape(3, 2).T
    given = model._ordered({"scale": np.float32(2), "x": x})
    assert [one.shape for one in given] == [(2, 3), ()]
    assert all(one.flags.c_contiguous for one in given)
    np.testing.assert_array_equal(given[0], x)
    with pytest.raises(UsageError, match=r"float32\[1\]; the model takes float32\[\]"):
        model._ordered({"scale": np.ones(1, np.float32), "x": x})
