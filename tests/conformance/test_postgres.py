"""The conformance suite, run for PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headgate.base.clock import ManualClock
from headgate.store.postgres import PostgresStore
from headgate.testing.conformance import *  # noqa: F403
from headgate.testing.conformance import World

pytest_plugins = ["headgate.testing.postgres"]


@pytest.fixture
async def world(postgres_url: str) -> AsyncIterator[World]:
    clock = ManualClock()
    world = World(lambda: PostgresStore(postgres_url, clock), clock)
    yield world
    await world.close()
