"""Groups of a convolution made fewer and larger, for registers that are wider than one group.

Neighbouring groups, side by side, are one group whose filters have zeros for the channels of the
others. A matrix register has sixteen columns, and multiplies zeros as fast as numbers: two groups
of eight filters fill it, half of it with zeros, and are still done many times faster than in
vectors of float32, where a group of eight fills half of a vector.
"""

from __future__ import annotations

import numpy as np

from tunefarm.frontend.relax.integer_products import Weights

TOGETHER = 4
"""Groups that may be one where four terms or more are added up at once, or in matrix registers: of
what is multiplied then three quarters are zeros, and it is still ahead of float32."""


def merged(groups: int, terms: int, columns: int, whole: int, filled: int, most: int) -> int | None:
    """How many neighbouring groups are to be one, as few as will do; None where no number will,
    and of single channels, whose products are not added up.

    Args:
        groups, terms, columns: of the convolution, the last two of each group.
        whole, filled: what a group's columns, and its terms, are to be a multiple of.
        most: groups that may be one.
    """
    if terms == 1:
        return None
    fits = (
        count
        for count in range(1, min(most, groups) + 1)
        if groups % count == 0 and columns * count % whole == 0 and terms * count % filled == 0
    )
    return next(fits, None)


def beside_zeros(weights: Weights, groups: int, count: int) -> Weights:
    """(..., terms, columns) of all groups, as those of groups that are `count` of these each."""
    *outer, terms, columns = weights.shape
    each = columns // groups
    made = np.zeros((*outer, count, terms, columns), weights.dtype)
    for one in range(count):
        its = np.arange(columns) // each % count == one
        made[..., one, :, its] = np.moveaxis(weights[..., its], -1, 0)
    return made.reshape(*outer, count * terms, columns)
