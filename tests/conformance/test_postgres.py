"""The conformance suite, run for PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from locktender.base.clock import ManualClock
from locktender.store.postgres import PostgresStore
from locktender.testing.conformance import *  # noqa: F403
from locktender.testing.conformance import StoreScene

pytest_plugins = ["locktender.testing.postgres"]


@pytest.fixture
async def world(postgres_url: str) -> AsyncIterator[StoreScene]:
    clock = ManualClock()
    world = StoreScene(lambda: PostgresStore(postgres_url, clock), clock)
    yield world
    await world.close()
