"""The contract of a search strategy, and the register of strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tunefarm.errors import UsageError
from tunefarm.search.space import Point, Space


@dataclass(frozen=True)
class Evaluated:
    """A point that has been tried.

    Attributes:
        point: as applied.
        latency_s: in seconds, None where it failed.
        asked: as suggested, before the compiler repaired it.
    """

    point: Point
    latency_s: float | None
    asked: Point | None = None


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
        """New results, each told once; also, as failures, points that could not be realised."""
        ...


StrategyFactory = Callable[[Space, int], Strategy]
"""(space, seed) -> strategy; it may ask the space for its sketches, points and estimates, and
leaves `realise` to the proposer"""

_FACTORIES: dict[str, StrategyFactory] = {}


def register_strategy(name: str, factory: StrategyFactory) -> None:
    _FACTORIES[name] = factory


def make_strategy(name: str, space: Space, seed: int) -> Strategy:
    """The strategy registered as `name`.

    Raises:
        UsageError: none is.
    """
    _load_own()
    if name not in _FACTORIES:
        raise UsageError(f"no strategy {name!r}; there are {', '.join(sorted(_FACTORIES))}")
    return _FACTORIES[name](space, seed)


def strategy_names() -> tuple[str, ...]:
    _load_own()
    return tuple(sorted(_FACTORIES))


def _load_own() -> None:
    from tunefarm.search.strategies.evolutionary import Evolutionary
    from tunefarm.search.strategies.guided import Guided
    from tunefarm.search.strategies.portfolio import Portfolio
    from tunefarm.search.strategies.random_search import RandomSearch
    from tunefarm.search.strategies.tpe import TreeParzen

    own: dict[str, StrategyFactory] = {
        "evolutionary": Evolutionary,
        "guided": Guided,
        "portfolio": Portfolio,
        "random": RandomSearch,
        "tpe": TreeParzen,
    }
    for name, factory in own.items():
        _FACTORIES.setdefault(name, factory)
