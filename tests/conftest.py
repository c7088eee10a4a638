"""An engine of a test's own, on a file of its own, whose history is checked at the end."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from tests.support import inherited, transports

from locktender import Client, embedded
from locktender.base.config import Settings
from locktender.base.events import unpack
from locktender.base.graph import read_graph
from locktender.client import core as client_core
from locktender.observe.checker import History, check
from locktender.store.open import settings_for, store_for
from locktender.store.postgres.store import PostgresStore
from locktender.store.protocol import EventFilter, Store
from locktender.store.sqlite.store import SqliteStore
from locktender.testing.fixtures import LONG_LEASE, Engines, VirtualClock

# Here, not in tests/store: tests of other folders import parts of it first.
pytest.register_assert_rewrite("locktender.testing.conformance")


def pytest_configure(config: pytest.Config) -> None:
    # Modules of the client's suite are run over PostgreSQL, each also alone.
    config.pluginmanager.import_plugin("locktender.testing.postgres")
    inherited.reset()
    given = config.getoption("basetemp")
    folder = Path(given).absolute().parent if given else Path(tempfile.gettempdir())
    if wrong := inherited.settings_above(folder):
        raise pytest.UsageError(wrong)


# The same examples in every run, and none is judged by how long it took.
hypothesis_settings.register_profile(
    "any machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("any machine")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    named = inspect.signature(metafunc.function).parameters
    reaches = "transport" in named or "engine" in metafunc.fixturenames
    if getattr(metafunc.module, "ALL_TRANSPORTS", False) and reaches:
        transports.parametrise(metafunc)


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> str:
    """How the client of a test reaches its engine; more than one in modules that say `ALL_TRANSPORTS`."""
    return getattr(request, "param", "sqlite")


@pytest.fixture
def url(tmp_path: Path, transport: str, request: pytest.FixtureRequest) -> Path:
    if transports.is_postgres(transport):
        return request.getfixturevalue("postgres_url")
    return tmp_path / "locktender.db"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A new store of each kind, for tests that hold on both."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres_url")
    return str(tmp_path / "locktender.db")


@pytest.fixture
def engine_clock(
    make_engine: Engines, transport: str, request: pytest.FixtureRequest
) -> Iterator[VirtualClock]:
    """The store's time, moved by the test, on the store of the transport."""
    if not transports.is_postgres(transport):
        with make_engine.virtual() as clock:
            yield clock
        return
    with _moved(str(request.getfixturevalue("url"))) as clock:
        yield clock


@pytest.fixture
def store_clock(store_url: str) -> Iterator[VirtualClock]:
    """The time of `store_url`, moved by the test. Ask for it before an engine is opened there."""
    with _moved(store_url) as clock:
        yield clock


@contextmanager
def _moved(url: str) -> Iterator[VirtualClock]:
    clock = VirtualClock()

    def store(settings: Settings) -> Store:
        if settings.url != url:
            return store_for(settings)
        return PostgresStore(url, clock) if "://" in url else SqliteStore(url, clock)

    with mock.patch.object(client_core, "store_for", store):
        yield clock


@pytest.fixture
def engine(url: Path, transport: str, request: pytest.FixtureRequest) -> Iterator[Client]:
    clock: VirtualClock | None = None
    settings: dict[str, Any] = {"grace": "2s"}
    if "engine_clock" in request.fixturenames:
        clock = request.getfixturevalue("engine_clock")
        # No lease may end because the test moves the time.
        settings |= {"worker_lease": LONG_LEASE, "leader_lease": LONG_LEASE}
    with embedded(url, **settings) as client, transports.reached(transport, client) as reached:
        if clock is not None:
            clock.add(client)
        yield reached
    assert broken_promises(url) == []


def broken_promises(url: Path | str) -> list[str]:
    """What the history checker finds in the whole history of a store."""
    return asyncio.run(_check(url))


async def _check(url: Path | str) -> list[str]:
    store = store_for(settings_for(url, {}))
    await store.open()
    try:
        rows = await store.events(EventFilter(limit=1_000_000))
        events = [event for row in rows for event in unpack(row)]
        named = {event.data["graph"] for event in events if "graph" in event.data}
        graphs = {digest: read_graph(await store.graph(digest)) for digest in named}
    finally:
        await store.close()
    # A leader reads the clock a little before it commits.
    return [str(each) for each in check(History(events, graphs, slack_us=5_000_000))]
