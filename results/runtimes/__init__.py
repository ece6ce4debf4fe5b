"""Every runtime that a model can be compared in."""

from __future__ import annotations

from tunefarm.errors import UsageError
from tunefarm.results.runtimes.contract import Runtime
from tunefarm.results.runtimes.inductor import Inductor
from tunefarm.results.runtimes.iree import Iree
from tunefarm.results.runtimes.onnx_runtime import OnnxRuntime
from tunefarm.results.runtimes.open_vino import OpenVino
from tunefarm.results.runtimes.ours import Tunefarm, UntunedTvm
from tunefarm.results.runtimes.xla import Xla

RUNTIMES: dict[str, type[Runtime]] = {
    one.name: one for one in (Tunefarm, UntunedTvm, OnnxRuntime, OpenVino, Iree, Inductor, Xla)
}


def runtime(name: str) -> Runtime:
    """A fresh adapter.

    Raises:
        UsageError: no such runtime.
    """
    if name not in RUNTIMES:
        raise UsageError(f"no runtime {name!r}; there are {', '.join(RUNTIMES)}")
    return RUNTIMES[name]()
