"""A kernel built and run the way candidates are: what `doctor` tries."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tunefarm.devices.registry import local_devices
from tunefarm.errors import TunefarmError
from tunefarm.frontend.program import TensorSpec
from tunefarm.home import Home
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import ScreenRequest
from tunefarm.measure.runner import Runner
from tunefarm.process import Child
from tunefarm.search.candidate import UNTUNED


def write_workload(path: Path) -> None:
    """In a child: a 64x64x64 matmul as TensorIR."""
    import tvm
    from tvm import te

    a, b = (te.placeholder((64, 64), "float32", name=name) for name in "ab")
    k = te.reduce_axis((0, 64), "k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    function = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
    path.write_text(tvm.ir.save_json(tvm.IRModule({"main": function})))


def build_and_run() -> str:
    """Build, gate and time an untuned matmul.

    Raises:
        TunefarmError: the build or the run fails.
    """
    device = local_devices(Home.from_environment().prepare())[0]
    spec = [TensorSpec(name, (64, 64), "float32") for name in "abc"]
    protocol = Protocol()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with Child("tunefarm.measure.selftest:write_workload") as child:
            child.call(root / "w.json", 60.0)
        builder, runner = Builder(60.0), Runner(device.cores, protocol.memory_bytes)
        try:
            built = builder.build(
                BuildRequest(root / "w.json", device.target, UNTUNED, root / "k.so")
            )
            _raise(built.failure)
            assert built.library is not None
            facts = KernelFacts("w", tuple(spec), 2.0 * 64**3, root / "ref.npz")
            ran = runner.screen(ScreenRequest(built.library, facts, protocol, None, True))
            _raise(ran.failure)
            assert ran.screening is not None
        finally:
            builder.close()
            runner.close()
        samples = sorted(ran.screening.samples)
        middle = samples[len(samples) // 2]
    return f"a matmul built in {built.seconds:.1f} s, right, {middle * 1e6:.0f} us"


def _raise(failure: Any) -> None:
    if failure is not None:
        raise TunefarmError(
            f"{failure.kind.value}: {failure.message}", hint="tunefarm devices probe"
        )
