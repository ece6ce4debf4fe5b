"""A program is read back as it was, with its weights beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tunefarm.frontend.dtypes import numpy_dtype

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64", "uint8"])
def test_a_program_is_read_back_with_its_weights(dtype: str, tmp_path: Path) -> None:
    from tvm import relax
    from tvm_ffi import structural_equal

    from tunefarm.frontend.stored import load_program_module, save_program

    large = np.random.default_rng(0).uniform(0, 100, (64, 64)).astype(numpy_dtype(dtype))
    weight = relax.const(large, dtype)
    builder = relax.BlockBuilder()
    x = relax.Var("x", weight.ty)
    with builder.function("main", [x]):
        y = builder.emit(relax.op.add(x, weight))
        y = builder.emit(relax.op.multiply(y, weight))
        builder.emit_func_output(builder.emit(relax.op.add(y, relax.const(2, dtype))))
    module = builder.get()
    path = tmp_path / "program.json"
    save_program(module, path)
    assert path.stat().st_size < large.nbytes
    with np.load(path.with_suffix(".npz")) as arrays:
        assert [arrays[name].nbytes for name in arrays.files] == [large.nbytes], "kept once"
    assert structural_equal(load_program_module(path), module)
