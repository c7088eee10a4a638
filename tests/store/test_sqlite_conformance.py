"""The conformance suite, run for SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from locktender.base.clock import ManualClock
from locktender.store.sqlite import SqliteStore
from locktender.testing.conformance import *  # noqa: F403
from locktender.testing.conformance import StoreScene


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[StoreScene]:
    clock = ManualClock()
    world = StoreScene(lambda: SqliteStore(tmp_path / "locktender.db", clock), clock)
    yield world
    await world.close()
