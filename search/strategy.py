"""The contract of a search strategy, and the register of strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tunefarm.errors import UsageError
from tunefarm.search.space import Knob, Point


@dataclass(frozen=True)
class Evaluated:
    """A point that has been measured: its latency in seconds, or None where it failed."""

    point: Point
    latency_s: float | None


class Strategy(Protocol):
    """Proposes points of one kernel's space.

    In-flight points (proposed, not yet measured) are an argument, never hidden state: a strategy
    that is made anew and told the same results proposes from the same knowledge. Implementations
    draw from their seed alone and may propose duplicates; the proposer drops them. Single-threaded.
    """

    def suggest(self, count: int, in_flight: Collection[Point]) -> list[Point]:
        """About `count` points worth building; an empty list means that nothing is left."""
        ...

    def update(self, completed: Sequence[Evaluated]) -> None:
        """New results, each told once."""
        ...


StrategyFactory = Callable[[tuple[tuple[Knob, ...], ...], int], Strategy]
"""(the space's sketches, seed) -> strategy"""

_FACTORIES: dict[str, StrategyFactory] = {}


def register_strategy(name: str, factory: StrategyFactory) -> None:
    _FACTORIES[name] = factory


def make_strategy(name: str, sketches: tuple[tuple[Knob, ...], ...], seed: int) -> Strategy:
    """The strategy registered as `name`.

    Raises:
        UsageError: none is.
    """
    _load_own()
    if name not in _FACTORIES:
        raise UsageError(f"no strategy {name!r}; there are {', '.join(sorted(_FACTORIES))}")
    return _FACTORIES[name](sketches, seed)


def strategy_names() -> tuple[str, ...]:
    _load_own()
    return tuple(sorted(_FACTORIES))


def _load_own() -> None:
    from tunefarm.search.evolutionary import Evolutionary
    from tunefarm.search.random_search import RandomSearch
    from tunefarm.search.tpe import TreeParzen

    own: dict[str, StrategyFactory] = {
        "evolutionary": Evolutionary,
        "random": RandomSearch,
        "tpe": TreeParzen,
    }
    for name, factory in own.items():
        _FACTORIES.setdefault(name, factory)
