"""tunefarm: a tuning and benchmarking farm for tensor programs.

The public names are imported on first use, so that ``import tunefarm`` costs nothing:

- ``load(path)``: open an artifact (needs the TVM runtime alone).
- ``Journal``: the durable record of a farm home.
- ``Protocol``: the measurement protocol and its defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Journal", "Protocol", "__version__", "load"]

if TYPE_CHECKING:
    from tunefarm.measure.protocol import Protocol
    from tunefarm.results.journal import Journal
    from tunefarm.results.loader import load

_PUBLIC = {
    "load": "tunefarm.results.loader",
    "Journal": "tunefarm.results.journal",
    "Protocol": "tunefarm.measure.protocol",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tunefarm' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
