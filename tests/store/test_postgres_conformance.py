"""The conformance suite, run for PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from locktender.base.clock import ManualClock
from locktender.store.postgres import PostgresStore
from locktender.testing.conformance import *  # noqa: F403
from locktender.testing.conformance import StoreScene
from locktender.testing.postgres_server import connected, copy_of, execute, run

pytest_plugins = ["locktender.testing.postgres"]

TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'locktender' ORDER BY 1"
SEQUENCES = "SELECT sequencename, start_value FROM pg_sequences WHERE schemaname = 'locktender'"


class Database(NamedTuple):
    url: str
    anew: str
    """Statements after which it is as it was made: much faster than to make another."""


async def made_anew(url: str) -> str:
    async with connected(url) as conn:
        tables = [row[0] for row in await conn.fetch(TABLES)]
        sequences = await conn.fetch(SEQUENCES)
        await conn.execute("CREATE SCHEMA as_made")
        for table in tables:
            await conn.execute(f"CREATE TABLE as_made.{table} AS TABLE locktender.{table}")
    statements = [f"DELETE FROM locktender.{table}" for table in tables]
    statements += [
        f"INSERT INTO locktender.{each} OVERRIDING SYSTEM VALUE TABLE as_made.{each}"
        for each in tables
    ]
    statements += [
        f"SELECT setval('locktender.{name}', {first}, false)" for name, first in sequences
    ]
    return ";".join(statements)


@pytest.fixture(scope="module")
def database(postgres_server: str, postgres_template: str) -> Iterator[Database]:
    with copy_of(postgres_server, postgres_template) as url:
        yield Database(url, run(made_anew(url)))


@pytest.fixture
async def world(database: Database) -> AsyncIterator[StoreScene]:
    await execute(database.url, database.anew)
    clock = ManualClock()
    world = StoreScene(lambda: PostgresStore(database.url, clock), clock)
    yield world
    await world.close()
