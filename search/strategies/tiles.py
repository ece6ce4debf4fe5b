"""Perfect splits of a loop: drawing one, and moving to a neighbour."""

from __future__ import annotations

import random

from tunefarm.search.space import Knob, KnobKind, Point, Value


def prime_factors(number: int) -> list[int]:
    """60 -> [2, 2, 3, 5]; 1 -> []."""
    factors, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return [*factors, number] if number > 1 else factors


def random_tile(knob: Knob, rng: random.Random) -> tuple[int, ...]:
    """Each prime factor goes to a random position; the innermost stays within its limit."""
    tile = [1] * knob.size
    for prime in prime_factors(knob.extent):
        position = rng.randrange(knob.size)
        innermost = position == knob.size - 1
        if innermost and knob.innermost_limit and tile[-1] * prime > knob.innermost_limit:
            position = rng.randrange(knob.size - 1) if knob.size > 1 else 0
        tile[position] *= prime
    return tuple(tile)


def move_factor(tile: tuple[int, ...], limit: int, rng: random.Random) -> tuple[int, ...]:
    """Move one prime factor from one position to another (the same tile if there is none)."""
    sources = [i for i, factor in enumerate(tile) if factor > 1]
    if not sources or len(tile) < 2:
        return tile
    source = rng.choice(sources)
    prime = rng.choice(prime_factors(tile[source]))
    targets = [
        i
        for i in range(len(tile))
        if i != source and not (i == len(tile) - 1 and limit and tile[i] * prime > limit)
    ]
    if not targets:
        return tile
    moved = list(tile)
    moved[source] //= prime
    moved[rng.choice(targets)] *= prime
    return tuple(moved)


def random_value(knob: Knob, rng: random.Random) -> Value:
    if knob.kind is KnobKind.TILE:
        return random_tile(knob, rng)
    if knob.kind is KnobKind.CHOICE:
        return rng.randrange(knob.size)
    return None  # which loops can be computed at depends on the tiles: the space draws


def random_point(sketches: tuple[tuple[Knob, ...], ...], rng: random.Random) -> Point:
    sketch = rng.randrange(len(sketches))
    return Point(sketch, tuple(random_value(knob, rng) for knob in sketches[sketch]))


def mutate(knobs: tuple[Knob, ...], point: Point, rng: random.Random, changes: int = 1) -> Point:
    """`point` with up to `changes` of its knobs moved to a neighbouring value."""
    values = list(point.values)
    for index in rng.sample(range(len(knobs)), min(changes, len(knobs))):
        knob, value = knobs[index], values[index]
        if knob.kind is KnobKind.TILE and isinstance(value, tuple):
            values[index] = move_factor(value, knob.innermost_limit, rng)
        else:
            values[index] = random_value(knob, rng)
    return Point(point.sketch, tuple(values))


def cross(first: Point, second: Point, rng: random.Random) -> Point:
    """Each knob from one parent or the other; both must be of one sketch."""
    pairs = zip(first.values, second.values, strict=True)
    return Point(first.sketch, tuple(rng.choice(pair) for pair in pairs))
