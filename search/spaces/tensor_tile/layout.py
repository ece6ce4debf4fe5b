"""Where the elements of a tile lie in shared memory: so that neither who writes rows of it nor who
reads matrices meets the same bank twice, and as Hopper's tensor cores read it themselves.

A tile is kept in panels: lines of at most 128 bytes that hold what lies side by side in memory, one
below the other. Of a line the pieces of sixteen bytes change places with each other, by an
exclusive or with the number of the 128 bytes that they lie in: NVIDIA, Parallel Thread Execution
ISA, "Shared Memory Matrix Layout" (swizzling modes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CHUNK = 16
"""Bytes that stay together."""
_BANKS = 128
WIDTHS = (128, 64, 32)
"""Of a panel's line in bytes, best first: what wider ones need fewer of."""
ALIGNED = 1024
"""Bytes, at a multiple of which a tile must begin: the pattern of the widest lines repeats so."""


@dataclass(frozen=True)
class TileLayout:
    """One operand's tile.

    Attributes:
        lines: its rows, or the right operand's columns.
        depth: its terms of a sum.
        deep: neighbours along the depth lie side by side; else those along the lines do.
    """

    lines: int
    depth: int
    element_bytes: int
    deep: bool

    @property
    def _along(self) -> int:
        return (self.depth if self.deep else self.lines) * self.element_bytes

    @property
    def across(self) -> int:
        """Lines of a panel."""
        return self.lines if self.deep else self.depth

    @property
    def width(self) -> int:
        """Of a panel's line, in bytes; 0 where there is none that fits."""
        return next((one for one in WIDTHS if self._along % one == 0), 0)

    @property
    def panel_bytes(self) -> int:
        return self.across * self.width

    @property
    def bytes(self) -> int:
        return self.lines * self.depth * self.element_bytes

    @property
    def aligned_bytes(self) -> int:
        """From its beginning to where another may begin."""
        return -(-self.bytes // ALIGNED) * ALIGNED

    @property
    def lies(self) -> bool:
        """Whether its panels can be laid out so."""
        return self.width > 0 and self.across % 8 == 0

    @property
    def fits(self) -> bool:
        """Whether another may begin where it ends, too."""
        return self.lies and self.bytes == self.aligned_bytes

    def offset(self, line: Any, term: Any) -> Any:
        """Bytes from the tile's beginning to an element; of numbers, or of TensorIR's terms."""
        along, across = (term, line) if self.deep else (line, term)
        byte = along * self.element_bytes
        chunks = self.width // CHUNK
        chunk = byte % self.width // CHUNK
        turned = chunk ^ (across // (_BANKS // self.width) % chunks)
        return (
            byte // self.width * self.panel_bytes
            + across * self.width
            + (turned * CHUNK + byte % CHUNK)
        )
