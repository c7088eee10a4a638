"""A PostgreSQL server for tests: ours from a wheel, or the one that `LOCKTENDER_TEST_POSTGRES` names.

Usable without pytest; `locktender.testing.postgres` makes fixtures of it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from locktender.base.errors import LocktenderError
from locktender.store.postgres import PostgresStore, local

T = TypeVar("T")
VARIABLE = "LOCKTENDER_TEST_POSTGRES"
_UNSAFE_BUT_FAST = (
    "ALTER SYSTEM SET fsync = off",
    "ALTER SYSTEM SET full_page_writes = off",
    "ALTER SYSTEM SET autovacuum = off",
    "SELECT pg_reload_conf()",
)
"""A test's data need not survive the machine, and nothing but the test may take a transaction's number."""


class NoServer(Exception):
    """PostgreSQL cannot be started here."""


@contextmanager
def server(*, durable: bool = False) -> Generator[str]:
    """The url of a server, with a role that may create databases. `durable`: with fsync, for figures."""
    given = os.environ.get(VARIABLE)
    if given:
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="locktender-pg-"))
    try:
        started = local.start(folder / "data")
    except LocktenderError as error:
        shutil.rmtree(folder)
        raise NoServer(
            f"PostgreSQL cannot be started here ({error}); set {VARIABLE} to a url"
        ) from error
    try:
        if not durable:
            run(execute(started.url, *_UNSAFE_BUT_FAST))
        yield started.url
    finally:
        started.stop()
        shutil.rmtree(folder)


@contextmanager
def template(url: str) -> Generator[str]:
    """The name of a database with our schema in it, without a connection."""
    name = f"locktender_template_{os.urandom(4).hex()}"
    run(execute(url, f"CREATE DATABASE {name}"))
    run(_migrate(database(url, name)))
    yield name
    run(execute(url, f"DROP DATABASE {name}"))


async def _migrate(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    await store.close()


@contextmanager
def copy_of(url: str, template: str) -> Generator[str]:
    """The url of a fresh copy of `template`."""
    name = f"locktender_test_{os.urandom(6).hex()}"
    # Our own server is new enough to copy files, which takes half the time; one given may not be.
    how = "" if os.environ.get(VARIABLE) else "STRATEGY FILE_COPY"
    run(execute(url, f"CREATE DATABASE {name} TEMPLATE {template} {how}"))
    yield database(url, name)
    run(execute(url, f"DROP DATABASE {name} WITH (FORCE)"))


def database(url: str, name: str) -> str:
    """`url` with another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def with_options(url: str, **options: str) -> str:
    """`url` with parameters of our own: `schema`, `pooled`, `listen`."""
    parts = urlsplit(url)
    query = [*parse_qsl(parts.query, keep_blank_values=True), *options.items()]
    return urlunsplit(parts._replace(query=urlencode(query)))


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, also beside a loop that is running."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[asyncpg.Connection[Any]]:
    """A plain connection, for a test that reads past the store."""
    conn: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        yield conn
    finally:
        await conn.close()


async def execute(url: str, *statements: str) -> None:
    async with connected(url) as conn:
        for statement in statements:
            await conn.execute(statement)
