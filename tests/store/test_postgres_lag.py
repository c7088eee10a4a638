"""A history that a frozen client holds back is read again at growing intervals, and logged."""

from __future__ import annotations

import asyncio
import logging

import pytest

from locktender.base.clock import SECOND
from locktender.store.postgres.lag import LONGEST_SECONDS, Lag


async def test_it_looks_again_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda seconds, look: waits.append(seconds))
    lag = Lag(lambda: None)
    with caplog.at_level(logging.WARNING):
        for _ in range(12):
            lag.found(1)
        assert caplog.records == []
        lag.found(3 * SECOND)
        lag.found(4 * SECOND)
    assert waits[:3] == [0.002, 0.004, 0.008]
    assert waits[-1] == LONGEST_SECONDS
    # Told once, not with every look.
    assert len(caplog.records) == 1
    lag.found(None)
    lag.found(1)
    assert waits[-1] == 0.002
