"""For tests that compile CUDA: where nothing compiles it, they are skipped."""

from __future__ import annotations

import pytest

from tunefarm.errors import UnsupportedTarget
from tunefarm.measure.cuda import compiler as cuda


def _why_none() -> str:
    """In tunefarm's own words, and what to install; empty where something compiles, and where it
    should but fails: then the tests are to fail."""
    try:
        cuda.cuda_compiler()
    except UnsupportedTarget as error:
        return f"{error}. {error.hint}" if "nothing here compiles CUDA" in error.message else ""
    return ""


_WHY = _why_none()
needs_compiler = pytest.mark.skipif(bool(_WHY), reason=_WHY)
