"""Element types by name, bfloat16 among them, which NumPy has through `ml_dtypes` alone."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

BFLOAT16 = "bfloat16"
HALF = ("float16", BFLOAT16)
TF32 = "tf32"
"""float32 of which products see ten bits, on tensor cores; no tensor is of that type."""
ROUGH = (*HALF, TF32)
"""What a product's factors may be rounded to; its sums are in float32."""

BYTES = ("int8", "uint8")
BYTES_KEPT = "int16"
"""What such numbers are kept in where products read them in 16 bits."""
INT8 = "int8"
"""What a quantised model is computed in: numbers of 8 bits, signed ones or not."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The type of arrays of it.

    Raises:
        TypeError: there is none of that name.
    """
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


def for_npz(array: NDArray[Any]) -> NDArray[Any]:
    """The array as a file of NumPy's can hold it: of bfloat16 it would keep nothing but bytes."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def save_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Such a file, of arrays with any names: `numpy.savez` takes some for its own parameters."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array(part, for_npz(array), allow_pickle=False)


def from_npz(array: NDArray[Any], name: str) -> NDArray[Any]:
    """An array out of such a file as the type `name`: bfloat16 from its bytes, or from float32, the
    two ways in which it gets into one; another as it is."""
    if name == "bfloat16" and array.dtype == np.float32:
        return array.astype(numpy_dtype(name))
    if name == "bfloat16" and array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return array.view(numpy_dtype(name))
    return array


_STEPS = {"bfloat16": 2.0**-7, TF32: 2.0**-10}


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def rounding(name: str) -> float:
    """The distance from one to the next number of a floating-point type."""
    if name in _STEPS:
        return _STEPS[name]
    return float(np.finfo(name).eps)


def narrowest(names: Iterable[str]) -> str:
    """Of types of floating-point numbers the one that rounds most; of none ``float32``."""
    return max(names, key=rounding, default="float32")
