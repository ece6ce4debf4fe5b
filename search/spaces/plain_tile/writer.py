"""From a tile to a kernel whose threads multiply each for itself."""

from __future__ import annotations

from typing import Any

from tunefarm.search.spaces.plain_tile import device_text as text
from tunefarm.search.spaces.plain_tile.tile import Lanes, PlainPlan
from tunefarm.search.spaces.tensor_tile.writer import TileWriter
from tunefarm.search.spaces.written import call


class PlainWriter(TileWriter[PlainPlan]):
    @property
    def _lanes(self) -> Lanes:
        found = self._plan.lanes
        assert found is not None, "it fits"
        return found

    def _products(self, left: Any, right: Any) -> Any:
        return call(text.multiply(self._lanes), self._sums.data, left, right)

    def _lay_down(self) -> Any:
        laid = text.lay_down(self._lanes, self._plan.laid_row)
        return call(laid, self._sums.data, self._start)
