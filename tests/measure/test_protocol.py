"""What a candidate's promise buys it."""

from __future__ import annotations

import pytest

from tunefarm.measure.protocol import Protocol


def test_screening_takes_time_in_proportion_to_promise() -> None:
    protocol = Protocol()
    assert protocol.screening_s(1e-3, None) == protocol.screen_s
    assert protocol.screening_s(1e-3, 2e-3) == protocol.screen_s, "no more for the faster"
    assert protocol.screening_s(2e-3, 1e-3) == pytest.approx(protocol.screen_s / 8)
