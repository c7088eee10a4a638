"""Stores that tests of PostgreSQL share; tests of other stores define a `store` of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from locktender.store.postgres.store import PostgresStore


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """Another store on the same schema."""
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()
