"""User code that search and build workers import before they start.

``TUNEFARM_PLUGINS`` is a comma-separated list of importable modules. A plugin registers what its
traces need: TensorIR intrinsics (`tvm.s_tir.TensorIntrin.register`), families of schedules
(`tunefarm.search.spaces.register_space`) and strategies
(`tunefarm.search.strategy.register_strategy`).
"""

from __future__ import annotations

import importlib
import os

from tunefarm.errors import UsageError


def load_plugins() -> tuple[str, ...]:
    """Import them all; their names.

    Raises:
        UsageError: one cannot be imported.
    """
    names = [n.strip() for n in os.environ.get("TUNEFARM_PLUGINS", "").split(",") if n.strip()]
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(
                f"plugin {name!r} cannot be imported: {error}",
                hint="TUNEFARM_PLUGINS lists importable modules; check it and PYTHONPATH.",
            ) from error
    return tuple(names)
