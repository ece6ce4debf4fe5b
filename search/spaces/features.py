"""What the ranking sees of a scheduled kernel that no hardware model knows, whichever sketch or
family made it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

from tunefarm.costmodel.features import summarise
from tunefarm.devices.target import Target
from tunefarm.search import replay

STORES = 3 * 164 + 1
"""Length of TVM's features of the stores, summarised."""


def features_of_stores(schedule: Any, target: Target) -> NDArray[np.float64]:
    """TVM's 164 features of every store, summarised: `STORES` numbers."""
    arguments = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    candidate = ms.MeasureCandidate(schedule, arguments)
    (stores,) = PerStoreFeature().extract_from(replay.feature_context(target), [candidate])
    return summarise(stores.numpy())
