"""One vector per candidate, from the features of each of its stores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def summarise(stores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n_stores, k) features -> (3 k + 1,): maximum, mean, the last store's, and the count.

    The last store is the kernel's own result, the others its stages.

    Raises:
        ValueError: not a matrix, or without rows.
    """
    if stores.ndim != 2 or not len(stores):
        raise ValueError(f"per-store features of shape {stores.shape}")
    parts = [stores.max(axis=0), stores.mean(axis=0), stores[-1], [float(len(stores))]]
    return np.nan_to_num(np.concatenate(parts).astype(np.float64), posinf=1e9, neginf=-1e9)
