"""For tests that compile CUDA: where nothing compiles it, they are skipped."""

from __future__ import annotations

import pytest

from tunefarm.errors import UnsupportedTarget
from tunefarm.measure import cuda


def _compiler() -> str:
    try:
        return cuda.cuda_compiler()
    except UnsupportedTarget as error:
        return "" if "nothing here compiles CUDA" in error.message else "broken"


needs_compiler = pytest.mark.skipif(
    not _compiler(), reason="nothing here compiles CUDA: no nvcc on the path, and no NVRTC"
)
