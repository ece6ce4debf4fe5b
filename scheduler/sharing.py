"""How jobs share a farm: fairly, by weight, and by turns where there is less than one for each.

Pure. Each job has a virtual time, the seconds that it was served over its weight; whoever has had
least is served first: weighted fair queueing (Demers, Keshav, Shenker, SIGCOMM 1989) with a device
for a link and `TURN_S` of it for a packet. A job that comes later begins where the others are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

TURN_S = 60.0
"""A job that has a device keeps it for so long, unless others come or go."""
AWAITED = 0.25
"""What a second counts in which a job may have something and has it not: another one has still to
give it back. (Not nothing: a job that cannot use what it is given would keep it for good.)"""
SILENT_S = 30.0
"""Whoever has not asked for so long is gone."""
SETTLE_S = 6.0
"""A broker that has just begun gives out nothing new: others may have it, and will say so."""
WEIGHTS = {"low": 1.0, "normal": 3.0, "high": 9.0}


@dataclass(frozen=True)
class Claim:
    """What a job wants.

    Attributes:
        pool: only jobs with the same one share: a kind of device, or builders.
        there: what is in the pool, as far as this job sees: what it may be given.
        held: what it has of it, and can use.
    """

    job: str
    pool: str
    weight: float
    there: frozenset[str]
    held: frozenset[str]


@dataclass
class _Claimant:
    claim: Claim
    since: float
    heard: float
    served: float
    """Virtual time."""


@dataclass
class Pool:
    """Who has what of one pool; `began` is when its broker did."""

    began: float
    decided: float = 0.0
    claimants: dict[str, _Claimant] = field(default_factory=dict)
    given: dict[str, frozenset[str]] = field(default_factory=dict)
    """By job."""
    left: bool = False
    """Somebody has since the last decision."""

    def leave(self, job: str) -> None:
        """It wants nothing more."""
        if self.claimants.pop(job, None) is not None:
            del self.given[job]
            self.left = True

    def ask(self, claim: Claim, now: float) -> frozenset[str]:
        """What the job may have from now on; it is to ask again, and to give back what is not among
        it."""
        changed = self._forget(now) or self.left
        self.left = False
        known = self.claimants.get(claim.job)
        if known is not None:
            changed = changed or claim.there != known.claim.there
            known.claim, known.heard = claim, now
        else:
            begins = min((one.served for one in self.claimants.values()), default=0.0)
            self.claimants[claim.job] = _Claimant(claim, now, now, begins)
            self.given[claim.job] = claim.held
            changed = True
        if now - self.began < SETTLE_S:
            return self.given[claim.job]
        if changed or now - self.decided > TURN_S or not self.decided:
            self._decide(now)
        return self.given[claim.job]

    def _forget(self, now: float) -> bool:
        gone = [job for job, one in self.claimants.items() if now - one.heard > SILENT_S]
        for job in gone:
            del self.claimants[job], self.given[job]
        return bool(gone)

    def _decide(self, now: float) -> None:
        passed = now - self.decided if self.decided else 0.0
        for job, one in self.claimants.items():
            awaited = len(self.given[job] - one.claim.held)
            had = len(one.claim.held) + AWAITED * awaited
            one.served += passed * had / one.claim.weight
        self.decided = now
        queue = sorted(self.claimants.items(), key=lambda pair: (pair[1].since, pair[0]))
        times = {job: one.served for job, one in queue}
        weights = {job: one.claim.weight for job, one in queue}
        views = {job: one.claim.there for job, one in queue}
        self.given = divide(views, times, weights, self.given)


def divide(
    views: Mapping[str, frozenset[str]],
    times: Mapping[str, float],
    weights: Mapping[str, float],
    given: Mapping[str, frozenset[str]],
) -> dict[str, frozenset[str]]:
    """All that any job sees, each to one of those that see it; jobs keep what they have as far as
    their share goes.

    Args:
        views: by job, what it may be given; the jobs that have waited longest first.
        times: the virtual time of each.
        given: what each has so far.
    """
    shares = dict.fromkeys(views, 0)

    def first(name: str, among: Callable[[str], bool] = lambda job: True) -> str:
        seers = [job for job, view in views.items() if name in view]
        wanting = [job for job in seers if among(job)] or seers
        return min(wanting, key=lambda job: times[job] + shares[job] * TURN_S / weights[job])

    there = sorted(frozenset().union(*views.values()))
    for name in there:
        shares[first(name)] += 1
    found: dict[str, set[str]] = {}
    free = set(there)
    for job, share in shares.items():
        found[job] = set(sorted(given.get(job, frozenset()) & views[job] & free)[:share])
        free -= found[job]
    for name in sorted(free):
        found[first(name, lambda job: len(found[job]) < shares[job])].add(name)
    return {job: frozenset(names) for job, names in found.items()}
