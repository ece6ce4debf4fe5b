"""What the cost model sees of a scheduled kernel, whichever family made it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

from tunefarm.costmodel.features import summarise
from tunefarm.devices.target import Target
from tunefarm.search import replay

OWN = 40
"""Places for a family's own figures."""
STORES = 3 * 164 + 1
"""Length of TVM's features of the stores, summarised."""


def features_of_stores(schedule: Any, target: Target) -> NDArray[np.float64]:
    """TVM's 164 features of every store, summarised; nothing in a family's own places."""
    arguments = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    candidate = ms.MeasureCandidate(schedule, arguments)
    (stores,) = PerStoreFeature().extract_from(replay.feature_context(target), [candidate])
    return np.concatenate([summarise(stores.numpy()), np.full(OWN, np.nan)])


def features_of_family(own: Sequence[float]) -> NDArray[np.float64]:
    """A family's own figures alone: they say what its points are, at a thousandth of the time
    (the cost model takes what is missing as missing).

    Raises:
        ValueError: more than `OWN`.
    """
    if len(own) > OWN:
        raise ValueError(f"{len(own)} figures of a family, at most {OWN}")
    return np.concatenate([np.full(STORES, np.nan), own, np.full(OWN - len(own), np.nan)])
