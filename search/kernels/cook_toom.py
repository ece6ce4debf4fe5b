"""Minimal filtering: `size` outputs of a filter of `taps`, with `size + taps - 1` products.

Cook and Toom multiply polynomials at points; transposed, that is correlation (Winograd, Arithmetic
Complexity of Computations, 1980; Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks", CVPR 2016, who write F(m, r) for it). With the matrices A, B and G from `filtering`, for
a signal `d` of `size + taps - 1` elements and a filter `g`:

    y = A ((G g) * (B d))        y[i] = sum over k of d[i + k] g[k]

The nearer the points are to 1, the smaller the rounding error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

Matrix = tuple[tuple[Fraction, ...], ...]

POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2")))
"""Besides infinity, in the order in which they are taken; of each number its negative as well, for
the even and the odd terms of both are the same."""
LARGEST = len(POINTS) + 1
"""Products: of signals of more elements the rounding error is too large in single precision."""


@dataclass(frozen=True)
class Filtering:
    """Of shapes A: (size, products), B: (products, products), G: (products, taps)."""

    output: Matrix
    signal: Matrix
    taps: Matrix


def filtering(size: int, taps: int) -> Filtering:
    """The matrices of F(size, taps).

    Raises:
        ValueError: it would take more than `LARGEST` products.
    """
    products = size + taps - 1
    if not 2 <= products <= LARGEST:
        raise ValueError(f"F({size}, {taps}) takes {products} products, not 2 to {LARGEST}")
    points = POINTS[: products - 1]
    return Filtering(
        output=tuple(
            (*(point**row for point in points), Fraction(row == size - 1)) for row in range(size)
        ),
        signal=(
            *((*_polynomial(_others(points, point)), Fraction(0)) for point in points),
            _polynomial(points),
        ),
        taps=(
            *(
                tuple(point**power / _product(point, points) for power in range(taps))
                for point in points
            ),
            tuple(Fraction(power == taps - 1) for power in range(taps)),
        ),
    )


def _others(points: Sequence[Fraction], point: Fraction) -> list[Fraction]:
    return [one for one in points if one != point]


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients of the product of `x - root`, lowest power first."""
    found = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *found], [*(-root * c for c in found), Fraction(0)]
        found = [a + b for a, b in zip(shifted, scaled, strict=True)]
    return tuple(found)


def _product(point: Fraction, points: Sequence[Fraction]) -> Fraction:
    found = Fraction(1)
    for other in _others(points, point):
        found *= point - other
    return found
