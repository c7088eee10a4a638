"""Sessions of the database server that delay the store are named."""

# ruff: noqa: ASYNC110 — what is waited for is the server's
from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from locktender.base.clock import SECOND
from locktender.base.model import BlockingSession
from locktender.observe import checkpoint
from locktender.observe.why import explain_run, with_sessions
from locktender.store.postgres import PostgresStore, reads
from locktender.store.protocol import EventFilter
from locktender.testing.conformance.world import SceneLeader, submitted
from locktender.testing.postgres_server import connected, copy_of

pytest_plugins = ["locktender.testing.postgres"]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is named as soon as it is in a transaction."""
    monkeypatch.setattr(reads, "LONG_HISTORY_US", 0)
    monkeypatch.setattr(reads, "LONG_SNAPSHOT_US", 0)


async def sessions(store: PostgresStore, holds: str) -> list[BlockingSession]:
    return [each for each in (await store.held_up()).sessions if each.holds == holds]


async def begun(conn: asyncpg.Connection[Any], *statements: str) -> int:
    await conn.execute("SET application_name = 'their report'")
    for statement in ("BEGIN", *statements):
        await conn.execute(statement)
    return conn.get_server_pid()


@pytest.mark.usefixtures("at_once")
async def test_the_session_that_the_settled_history_waits_for(
    postgres_server: str, postgres_template: str, store: PostgresStore
) -> None:
    with copy_of(postgres_server, postgres_template) as elsewhere:
        async with connected(elsewhere) as theirs:
            pid = await begun(theirs, "SELECT pg_current_xact_id()")
            run = await submitted(store)
            [named] = await sessions(store, "history")
            name = urlsplit(elsewhere).path[1:]
            assert (named.pid, named.application, named.database) == (pid, "their report", name)
            assert named.age_us is not None
            assert (await store.held_up()).lag_us > 0
            # Audit ends before it, and says nothing of what it cannot see.
            audited = await checkpoint.audit(store)
            assert (audited.events, audited.violations) == (0, [])
            assert len(await store.events(EventFilter(run=run.seq))) == 1
            why = await with_sessions(store, await explain_run(store, run.id))
            assert f"Session {pid} (their report, database {name}" in why.text()
            await theirs.execute("COMMIT")
    assert (await checkpoint.audit(store)).events == 1
    assert await sessions(store, "history") == []


@pytest.mark.usefixtures("at_once")
async def test_a_long_snapshot_in_our_own_database_alone(
    postgres_server: str, postgres_template: str, postgres_url: str, store: PostgresStore
) -> None:
    """It only reads: nothing waits for it, but no old version of a row can be removed."""
    with copy_of(postgres_server, postgres_template) as elsewhere:
        async with connected(elsewhere) as theirs, connected(postgres_url) as ours:
            for each in (theirs, ours):
                await begun(each, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
            await submitted(store)
            [named] = await sessions(store, "cleanup")
            assert named.pid == ours.get_server_pid()
            assert "every commit becomes slower" in named.text()
            assert await sessions(store, "history") == []


async def test_a_lock_that_a_commit_waits_for(postgres_url: str, store: PostgresStore) -> None:
    leader = await SceneLeader.stand(store)
    run = await submitted(store)
    other = PostgresStore(postgres_url)
    await other.open()
    async with connected(postgres_url) as theirs:
        pid = await begun(theirs, "SELECT FROM locktender.leader FOR UPDATE")
        starting = asyncio.ensure_future(leader.start(run.seq))
        async with asyncio.timeout(60):
            while not (named := await sessions(other, "lock")):
                await asyncio.sleep(0.05)
        assert [each.pid for each in named] == [pid]
        assert "holds a lock" in named[0].text()
        await theirs.execute("ROLLBACK")
    await starting
    await other.close()
    assert await sessions(store, "lock") == []


async def test_nobody_is_named_while_all_is_well(store: PostgresStore) -> None:
    await submitted(store)
    async with asyncio.timeout(60):
        while (found := await store.held_up()).lag_us:
            assert found.lag_us < 60 * SECOND
            await asyncio.sleep(0.01)
    assert found.sessions == ()


def test_what_is_said_of_a_session_whose_age_is_hidden() -> None:
    hidden = BlockingSession("history", 0, "two phases", "app", None)
    assert hidden.text().startswith("Prepared transaction (two phases, database app): audit,")
