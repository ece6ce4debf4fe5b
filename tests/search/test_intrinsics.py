"""What the quick registration of intrinsics rests on."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.tvm, pytest.mark.alone]

CODE = """
import sys, time
from tunefarm.search.kernels.intrinsics import register_intrinsics
import tvm
started = time.perf_counter()
assert register_intrinsics("llvm", "x86_64") == ("x86",)
from tvm.s_tir import TensorIntrin, meta_schedule as ms
ms.TuneContext(num_threads=1)
seconds = time.perf_counter() - started
assert TensorIntrin.get("dot_16x4_vnni") is not None
assert "tvm.s_tir.tensor_intrin.cuda" not in sys.modules, "the whole package was imported"
print(seconds)
"""


CUDA = """
import time
import tvm
started = time.perf_counter()
from tunefarm.search.kernels.intrinsics import register_intrinsics
assert register_intrinsics("cuda") == ()
assert register_intrinsics("cuda-tensorcore") == ("cuda",)
seconds = time.perf_counter() - started
from tvm.s_tir import TensorIntrin
assert TensorIntrin.get("wmma_sync_16x16x16_f16f16f16") is not None
from tvm.tirx.script.parser import entry
import inspect
assert entry.inspect is inspect
print(seconds)
"""


def test_those_of_gpus_are_quick_too() -> None:
    done = subprocess.run([sys.executable, "-c", CUDA], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 6.0


def test_only_the_targets_own_intrinsics_are_imported_and_quickly() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 6.0
