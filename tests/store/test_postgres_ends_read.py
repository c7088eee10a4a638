"""A leader on PostgreSQL reads a few ends and their rows with one statement."""

from __future__ import annotations

from unittest import mock

import pytest

from locktender.base.changes import End
from locktender.store.postgres import PostgresStore
from locktender.store.postgres.reads import FEW_EVENTS
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import Accept, Finish, Gather
from locktender.testing.conformance.world import offered
from locktender.testing.postgres_server import connected

pytest_plugins = ["locktender.testing.postgres"]


@pytest.mark.parametrize("runs", [1, FEW_EVENTS + 2])
async def test_ends_come_with_their_rows(store: PostgresStore, runs: int) -> None:
    """Of the first few runs in the same statement, of others in one more."""
    leader, _, pairs = await offered(store)
    for _ in range(runs - 1):
        leader, _, more = await offered(store)
        pairs += more
    after = (await store.load()).cursor
    await store.accept(Accept("w1", pairs))
    ends = [End(task, token, "completed", b"%d" % task) for task, token in pairs]
    await store.finish(Finish("w1", ends))
    statements: list[str] = []
    real = PostgresSession.all

    async def counted(self: PostgresSession, name: str, *given: object) -> object:
        statements.append(name)
        return await real(self, name, *given)

    with mock.patch.object(PostgresSession, "all", counted):
        gathered = await store.gather(Gather(after, leader.actor))
    assert [(each.id, each.output) for each in gathered.tasks] == [
        (task, b"%d" % task) for task, _ in pairs
    ]
    assert statements.count("ended_tasks") == (runs > FEW_EVENTS)


async def test_a_change_that_cannot_be_read_fails_no_gather(
    store: PostgresStore, postgres_url: str
) -> None:
    leader, _, pairs = await offered(store)
    after = (await store.load()).cursor
    await store.accept(Accept("w1", pairs))
    async with connected(postgres_url) as conn:
        await conn.execute(
            "UPDATE locktender.event SET body = '\\xff5b227461736b222c393939393939393939393939393939393939392c'"
            " WHERE actor = 'worker:w1'"
        )
    gathered = await store.gather(Gather(after, leader.actor))
    assert gathered.tasks == []
    assert gathered.limits_changed  # what it may have told is read again
