"""Whole models whose constants lie beside their library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunefarm.measure import weights

pytestmark = pytest.mark.tvm


def module(constants: int) -> Any:
    """Two results of one input, with a constant that both use, and one of integers that is a result
    itself; without constants the input twice."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            results: list[Any] = [builder.emit(relax.op.add(x, x))]
            if constants:
                shared = relax.const(np.arange(8, dtype="float32"))
                results = [
                    builder.emit(relax.op.add(x, shared)),
                    builder.emit(relax.op.multiply(x, shared)),
                    relax.const(np.array([1, 2, 3], "int32")),
                ]
            output = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(output)
    return builder.get()


def built(found: Any, library: Path) -> Path:
    from tvm import relax

    from tunefarm.measure.assemble import _link

    relax.build(found, "llvm").export_library(str(library), fcompile=_link)
    return library


X = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")


def test_constants_are_lifted_once_each_and_given_back(tmp_path: Path) -> None:
    from tunefarm.measure.assemble import lift_constants
    from tunefarm.measure.model import CompiledModel

    lifted, constants = lift_constants(module(constants=2))
    assert sorted(str(c.dtype) for c in constants) == ["float32", "int32"], "one is used twice"
    library = built(lifted, tmp_path / "model.so")
    weights.write(weights.beside(library), constants)
    total, product, numbers = CompiledModel(library)([X])
    row = np.arange(8, dtype="float32")
    np.testing.assert_array_equal(total, X + row)
    np.testing.assert_array_equal(product, X * row)
    np.testing.assert_array_equal(numbers, [1, 2, 3])


def test_a_model_without_constants_takes_none(tmp_path: Path) -> None:
    from tunefarm.measure.assemble import lift_constants
    from tunefarm.measure.model import CompiledModel

    lifted, constants = lift_constants(module(constants=0))
    assert constants == []
    library = built(lifted, tmp_path / "model.so")
    weights.write(weights.beside(library), constants)
    (doubled,) = CompiledModel(library)([X])
    np.testing.assert_array_equal(doubled, X + X)


def test_a_library_with_its_constants_inside_still_runs(tmp_path: Path) -> None:
    """As artifacts had them before manifests of schema 2."""
    from tunefarm.measure.model import CompiledModel

    library = built(module(constants=2), tmp_path / "model.so")
    total, *_ = CompiledModel(library, [])([X])
    np.testing.assert_array_equal(total, X + np.arange(8, dtype="float32"))
