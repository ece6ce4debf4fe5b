"""Exponentials as polynomials: how far off they are, and where they end."""

from __future__ import annotations

import numpy as np
import pytest

from tunefarm.devices.target import Target

pytestmark = pytest.mark.tvm


def _called(name: str, values: np.ndarray, target: Target) -> np.ndarray:
    """What a kernel of one operator computes once it is rewritten, in vectors."""
    import tvm
    from tvm import te, tirx

    from tunefarm.frontend.relax.exponentials import exponentials
    from tunefarm.search.replay import tvm_target

    x = te.placeholder(values.shape, "float32", "x")
    y = te.compute(values.shape, lambda i: getattr(tirx, name)(x[i]), "y")
    function, count = exponentials(te.create_prim_func([x, y]))
    assert count == 1
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.vectorize(schedule.split(loop, [None, 16])[1])
    assert f"T.{name}(" not in schedule.mod.script()
    built = tvm.compile(schedule.mod, target=tvm_target(target))
    result = tvm.runtime.tensor(np.zeros_like(values))
    built["main"](tvm.runtime.tensor(values), result)
    return result.numpy()


def test_exponentials_are_right_to_the_last_digits(target: Target) -> None:
    for most, off in ((10.0, 2.5e-7), (87.0, 5e-7)):
        x = np.linspace(-most, most, 1 << 16, dtype=np.float32)
        want = np.exp(x.astype(np.float64))
        assert np.abs(_called("exp", x, target) / want - 1).max() < off


def test_logistic_functions_are_right(target: Target) -> None:
    x = np.linspace(-87, 87, 1 << 16, dtype=np.float32)
    want = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert np.abs(_called("sigmoid", x, target) / want - 1).max() < 6e-7


def test_what_lies_beyond_stays_within_bounds(target: Target) -> None:
    x = np.array([0, -0.0, -np.inf, -1e30, -88, np.nan, 88, 200, np.inf, *[1] * 7], np.float32)
    found = _called("exp", x, target)
    assert list(found[:5]) == [1, 1, 0, 0, 0]
    assert np.isnan(found[5])
    assert np.isfinite(found[6:]).all()
    assert (found[6:9] > 1e38).all()
    found = _called("sigmoid", x, target)
    assert list(found[[0, 1, 6, 7, 8]]) == [0.5, 0.5, 1, 1, 1]
    assert (found[2:5] < 1e-37).all()
    assert np.isnan(found[5])
