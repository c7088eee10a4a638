"""One suite of the client over all ways to reach an engine: SQLite, PostgreSQL, and a server on either by HTTP."""

from __future__ import annotations

import socket
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from locktender import AsyncClient, Client, connect, connect_async, embedded_async
from locktender.client.bridge import Bridge
from locktender.client.core import Core
from locktender.server.options import HttpOptions
from locktender.server.web import bind, port_of, serving
from locktender.store.open import settings_for

ALL = ("sqlite", "postgres", "http", "http-postgres")
_SLOTS = "slots() are held by a lease that this process renews in the database every few seconds"
_SECRETS = "with secret() whoever has a token could have a step show any variable of a worker"
_INSIDE = (
    "the test changes rows of the store, or counts its statements, through the client of a file"
)
_FILE = "the test changes rows of a SQLite file"
DIFFERENCES: dict[str, dict[str, str]] = {
    "http": {
        "test_client_slots": _SLOTS,
        "test_a_pool_nobody_set_is_unlimited_and_says_so": _SLOTS,
        "test_workers_are_listed_and_drained": _SLOTS,
        "test_the_history_says_who_changed_what": "who asks is the name of the token, not user@host",
        "test_g6_a_secret_stays_a_reference_in_the_traced_graph": _SECRETS,
        "test_lines_are_stored_while_the_body_runs": _SECRETS,
        "test_arguments_that_only_a_database_takes": "a request has arguments by name, and numbers of 64 bits",
        "test_slices_wait_until_the_leader_has_carried_out_the_last": _INSIDE,
        "test_a_schedule_whose_flow_is_gone_is_paused_and_not_lost": _INSIDE,
        "test_a_schedule_that_cannot_be_read_stops_no_other": _INSIDE,
        "test_a_hundred_unreadable_schedules_keep_none_from_its_ticks": _INSIDE,
        "test_a_body_that_logs_nothing_costs_no_statement": _INSIDE,
    },
    "postgres": {
        "test_thousands_are_submitted_at_once": "counts the calls of the store that keeps a file",
        "test_a_schedule_that_cannot_be_read_stops_no_other": _FILE,
        "test_a_hundred_unreadable_schedules_keep_none_from_its_ticks": _FILE,
    },
}
DIFFERENCES["http-postgres"] = {**DIFFERENCES["postgres"], **DIFFERENCES["http"]}
"""Of each transport: tests, or words of their names, that do not hold there, each with the reason."""


SEED, SAMPLED_OF = 17, 32
"""Of the tests over PostgreSQL one of so many is in `make test`: about a dozen, seconds each."""
LONG = {("http", "test_thousands_are_submitted_at_once")}
"""What takes too long for `make test`."""


def differs(transport: str, test: str) -> str | None:
    """Why a test does not hold for a transport."""
    return next((why for name, why in DIFFERENCES.get(transport, {}).items() if name in test), None)


def parametrise(metafunc: pytest.Metafunc) -> None:
    """The test once per transport. PostgreSQL is in `make test-long`, but for a sample.

    Its verbs are the file's own code. With `ALL_TRANSPORTS = "long"` HTTP is there, too.
    """
    late = metafunc.module.ALL_TRANSPORTS == "long"
    name = f"{metafunc.module.__name__.rpartition('.')[2]}::{metafunc.function.__name__}"
    several = [
        pytest.param(each, marks=[pytest.mark.long] if _is_long(each, name, late=late) else [])
        for each in ALL
        if differs(each, name) is None
    ]
    metafunc.parametrize("transport", several, indirect=True)


def _is_long(transport: str, name: str, *, late: bool) -> bool:
    if transport == "sqlite":
        return False
    if is_postgres(transport):
        return late or not _is_sampled(transport, name)
    return late or (transport, name.rpartition("::")[2]) in LONG


def _is_sampled(transport: str, name: str) -> bool:
    """The same tests in every run, on every machine."""
    return zlib.crc32(f"{SEED} {transport} {name}".encode()) % SAMPLED_OF == 0


def is_postgres(transport: str) -> bool:
    return transport.endswith("postgres")


def is_http(transport: str) -> bool:
    return transport.startswith("http")


@contextmanager
def served(engine: Client, options: HttpOptions | None = None) -> Iterator[str]:
    """The address of a server over the store of an engine of this process."""
    core, call = engine._core, engine._bridge.call
    stack = AsyncExitStack()
    with bind("127.0.0.1", 0) as listener:
        made = serving(core, listener, demand=True, api=True, options=options)
        call(stack.enter_async_context(made))
        try:
            yield f"http://127.0.0.1:{port_of(listener)}"
        finally:
            call(stack.aclose())


@contextmanager
def reached(how: str, engine: Client) -> Iterator[Client]:
    """A client of `engine`: itself, or one of a server in front of it."""
    if not is_http(how):
        yield engine
        return
    with served(engine) as address, connect(address) as client:
        yield client


@contextmanager
def server(url: Path, options: HttpOptions | None = None, **settings: Any) -> Iterator[str]:
    """The address of a server of its own over a file: it leads, and runs no tasks."""
    bridge, stack = Bridge(), AsyncExitStack()

    async def start(listener: socket.socket) -> None:
        core = await Core.open(settings_for(url, settings), engine=True, lead=True, work=False)
        stack.push_async_callback(core.close, 0)
        made = serving(core, listener, demand=True, api=True, options=options)
        await stack.enter_async_context(made)

    with bind("127.0.0.1", 0) as listener:
        bridge.call(start(listener))
        try:
            yield f"http://127.0.0.1:{port_of(listener)}"
        finally:
            bridge.call(stack.aclose())
            bridge.stop()


@asynccontextmanager
async def reached_async(how: str, url: Path, **settings: Any) -> AsyncIterator[AsyncClient]:
    """An engine on this loop, and a client of it: itself, or one of a server in front of it."""
    async with embedded_async(url, **settings) as engine:
        if not is_http(how):
            yield engine
            return
        with bind("127.0.0.1", 0) as listener:
            address = f"http://127.0.0.1:{port_of(listener)}"
            async with (
                serving(engine._core, listener, demand=True, api=True),
                connect_async(address) as client,
            ):
                yield client
