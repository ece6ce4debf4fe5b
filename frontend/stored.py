"""A program on disk: its text without its weights, and these beside it as they are.

As a part of the text, in base64, VGG-19's weights took longer to write and to read than everything
else about its import.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir.expr import GenericConst, Var
from tvm_ffi import structural_map

from tunefarm.frontend.dtypes import from_npz, numpy_dtype
from tunefarm.frontend.program import weights_of

LARGE = 1024
"""Bytes from which on a constant is not a part of the text."""
_NAME = "tunefarm_constant_"


def save_program(module: Any, path: Path) -> None:
    """Write `module` to `path`, and its large constants beside it."""
    found: dict[int, tuple[Any, Any]] = {}

    def apart(constant: Any) -> Any:
        array = constant.value
        if int(np.prod(array.shape)) * numpy_dtype(str(array.dtype)).itemsize < LARGE:
            return constant
        handle = constant.__chandle__()
        if handle not in found:
            found[handle] = (constant, relax.Var(f"{_NAME}{len(found)}", constant.ty))
        return found[handle][1]

    text = tvm.ir.save_json(_mapped(module, GenericConst, apart))
    arrays = [constant.value.numpy() for constant, _ in found.values()]
    np.savez(weights_of(path), **{f"{_NAME}{n}": array for n, array in enumerate(arrays)})
    path.write_text(text)


def load_program_module(path: Path) -> Any:
    """What `save_program` wrote."""
    module = tvm.ir.load_json(path.read_text())
    constants: dict[str, Any] = {}
    with np.load(weights_of(path)) as arrays:

        def again(variable: Any) -> Any:
            name = str(variable.name)
            if name not in arrays:
                return variable
            if name not in constants:
                dtype = str(variable.ty.dtype)  # else one of 64 bits would come back with 32
                constants[name] = relax.const(from_npz(arrays[name], dtype), dtype)
            return constants[name]

        return _mapped(module, Var, again)


def _mapped(module: Any, kind: type, change: Any) -> Any:
    """A copy in which `change` was applied to every node of `kind` in `main`."""
    copy = tvm.IRModule(module.functions, attrs=module.attrs)
    variable = copy.get_global_var("main")
    copy.update_func(variable, structural_map(module["main"], (kind, change)))
    return copy
