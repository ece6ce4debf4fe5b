"""What is computed of constants alone is what the compiler makes of it, without a compilation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tvm


def _numbers(dtype: str) -> np.ndarray:
    return np.random.default_rng(0).uniform(-9, 9, (2, 3, 4)).astype(dtype)


def _results(module: Any) -> list[np.ndarray]:
    import tvm
    from tvm import relax

    bound = {
        binding.var: binding.value
        for block in module["main"].body.blocks
        for binding in block.bindings
    }
    (output,) = (value for value in bound.values() if isinstance(value, relax.Tuple))
    values = [bound.get(field, field) for field in output.fields[:-1]]
    assert all(isinstance(value, tvm.ir.GenericConst) for value in values), values
    return [value.value.numpy() for value in values]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "uint8"])
def test_it_is_what_the_compiler_makes_of_it(dtype: str) -> None:
    from tvm import relax

    from tunefarm.frontend.relax.fold import Folded

    op, numbers = relax.op, _numbers(dtype)
    first, second = relax.const(numbers, dtype), relax.const(numbers[:1] + 1, dtype)
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            made = [
                builder.emit(one)
                for one in (
                    op.reshape(first, (4, 6)),
                    op.expand_dims(first, 1),
                    op.permute_dims(first, [2, 0, 1]),
                    op.permute_dims(first),
                    op.astype(first, "float32"),
                    op.add(first, second),
                    op.subtract(first, second),
                    op.multiply(first, second),
                )
            ]
            made += [builder.emit(op.less(first, second))]
            made += [builder.emit(op.where(made[-1], first, second))]
            made += [builder.emit(op.squeeze(op.expand_dims(second, 0), [0]))]
            output = builder.emit_output(relax.Tuple([*made, x]))
        builder.emit_func_output(output)
    module = relax.transform.Normalize()(builder.get())
    ours = _results(Folded()(module))
    theirs = _results(relax.transform.FoldConstant()(module))
    assert len(ours) == len(theirs) >= 11
    for one, other in zip(ours, theirs, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_left_to_the_compiler(dtype: str) -> None:
    from tvm import relax
    from tvm_ffi import structural_equal

    from tunefarm.frontend.dtypes import numpy_dtype
    from tunefarm.frontend.relax.fold import Folded

    constant = relax.const(_numbers("float32").astype(numpy_dtype(dtype)), dtype)
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        builder.emit_func_output(builder.emit(relax.op.permute_dims(constant)))
    folded = Folded()(builder.get())
    assert structural_equal(folded, builder.get())
