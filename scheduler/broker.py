"""The one actor of a farm that says which job may have what (`sharing`), and a job's side of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from tunefarm.scheduler.sharing import Claim, Pool

NAME, NAMESPACE = "tunefarm-broker", "tunefarm"
HEAD = "node:__internal_head__"
"""Ray's name for a resource that its head alone has."""
ANSWER_LIMIT_S, LEAVE_LIMIT_S = 20.0, 5.0


class Broker:
    """Keeps nothing: one that begins anew is told by the jobs what they have."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._began = time.monotonic()

    def ask(self, claims: tuple[Claim, ...]) -> dict[str, frozenset[str]]:
        """By pool, what the job may have from now on."""
        now = time.monotonic()
        return {
            claim.pool: self._pools.setdefault(claim.pool, Pool(self._began)).ask(claim, now)
            for claim in claims
        }

    def leave(self, job: str) -> None:
        """It has ended; whoever does not say so is missed after a while."""
        for pool in self._pools.values():
            pool.leave(job)


_remote: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)(Broker)


def _broker() -> Any:
    """The farm's one, made if there is none."""
    return _remote.options(
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        resources={HEAD: 0.001},
    ).remote()


@dataclass
class Share:
    """What a job may have, as the broker said last. Where it does not answer, nothing changes.

    Args:
        is_alone: there is no broker; the job may have everything.
    """

    job: str
    weight: float
    is_alone: bool
    _asked: Any = None
    _at: float = 0.0
    _may: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def may_have(self, pool: str, name: str) -> bool:
        return self.is_alone or name in self._may.get(pool, ())

    def ask(self, there: Mapping[str, frozenset[str]], held: Mapping[str, frozenset[str]]) -> None:
        """Tell the broker what is in each pool, and what of it the job has."""
        if self.is_alone:
            return
        if self._asked is not None and time.monotonic() - self._at < ANSWER_LIMIT_S:
            return
        claims = tuple(
            Claim(self.job, pool, self.weight, names, held.get(pool, frozenset()))
            for pool, names in there.items()
        )
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # it is just being made
            self._asked, self._at = _broker().ask.remote(claims), time.monotonic()

    def leave(self) -> None:
        if not self.is_alone:
            with contextlib.suppress(ray.exceptions.RayError, ValueError, TimeoutError):
                ray.get(_broker().leave.remote(self.job), timeout=LEAVE_LIMIT_S)

    def is_news(self) -> bool:
        """Whether the broker has answered with something else than before."""
        if self._asked is None or not ray.wait([self._asked], timeout=0)[0]:
            return False
        before = self._may
        with contextlib.suppress(ray.exceptions.RayError):
            self._may = ray.get(self._asked)
        self._asked = None
        return self._may != before
