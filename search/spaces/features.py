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

OWN = 12
"""Places for a family's own figures; those that it does not fill stay 0."""


def features_of(
    schedule: Any, target: Target, own: Sequence[float] = ()
) -> NDArray[np.float64]:
    """Features of every store (TVM's 164, summarised), then the family's own.

    Raises:
        ValueError: more than `OWN` of the latter.
    """
    if len(own) > OWN:
        raise ValueError(f"{len(own)} figures of a family, at most {OWN}")
    arguments = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    candidate = ms.MeasureCandidate(schedule, arguments)
    (stores,) = PerStoreFeature().extract_from(replay.feature_context(target), [candidate])
    return np.concatenate([summarise(stores.numpy()), own, np.zeros(OWN - len(own))])
