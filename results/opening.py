"""How a journal's store is opened: a damaged one is mended first, unless somebody writes to it."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from tunefarm.errors import StoreError
from tunefarm.home import Home
from tunefarm.results.driver_lock import driver_is_elsewhere
from tunefarm.results.salvage import Mended, facts_of, is_half_mended, mend, mending, put_in_place
from tunefarm.results.store import DamagedStore, Store, sqlite_path

_LOG = logging.getLogger(__name__)
"""Whoever opens a journal that had to be mended first is told: on standard error, where nobody has
configured anything else."""


def open_store(url: str, home: Home, mends: bool = True) -> tuple[Store, Mended | None]:
    """The store at `url`, whose jobs are in `home`; and what was put in its place first, where it
    was damaged.

    Raises:
        StoreError: it cannot be used, or is damaged and jobs write to it.
        DamagedStore: it is damaged, and is not to be mended (`mends`), or cannot be.
    """
    path, mended = sqlite_path(url), None
    aside = _finished(path, mends) if path is not None and is_half_mended(path) else None
    try:
        store = Store(url)
        if aside is not None:
            mended = Mended(aside, facts_of(store))
    except DamagedStore:
        if path is None or not mends:
            raise
        mended = mended_store(url, home)
        store = Store(url)
    if mended is not None:
        _LOG.warning(mended.words())
    return store, mended


def _finished(path: Path, mends: bool) -> Path | None:
    """Of a mending that was cut short, where the damaged file is now; None where somebody else was
    first.

    Raises:
        DamagedStore: it is not to be mended.
    """
    if not mends:
        raise DamagedStore(f"a mending of {path} was cut short")
    with mending(path):
        return put_in_place(path) if is_half_mended(path) else None


def mended_store(url: str, home: Home) -> Mended | None:
    """Put what is sound in the place of an SQLite journal. None where there is nothing to be saved
    (it is no journal of ours), or nothing to be mended any more: somebody else was first.

    Raises:
        StoreError: a living driver writes to it.
    """
    path = sqlite_path(url)
    assert path is not None
    with mending(path):
        if _is_whole(url):
            return None
        _refuse_busy(path, home)
        try:
            return mend(path)
        except ValueError:
            return None


def _is_whole(url: str) -> bool:
    with contextlib.suppress(DamagedStore):
        store = Store(url)
        try:
            return store.is_whole()
        finally:
            store.close()
    return False


def _refuse_busy(path: Path, home: Home) -> None:
    busy = [d.name for d in home.jobs.glob("*") if driver_is_elsewhere(home, d.name)]
    if busy:
        raise StoreError(
            f"the journal {path} is damaged, and jobs write to it: {', '.join(busy)}",
            hint="Stop them (they can be resumed), then: tunefarm journal check --mend",
        )
