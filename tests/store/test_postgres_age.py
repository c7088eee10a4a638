"""D8: a run that is submitted when another one is stored is not older than that. Equal runs start by age.

Submitters reckon the server's time from its last answer: if that was late, what they reckon lags.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from locktender.base.clock import SECOND
from locktender.store.postgres.server_clock import ServerClock
from locktender.store.postgres.store import PostgresStore
from locktender.testing.conformance.world import SceneLeader, submitted

pytest_plugins = ["locktender.testing.postgres"]
LATE_US = 9 * SECOND // 10


@pytest.fixture
async def one(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


def answered_late(store: PostgresStore) -> None:
    """The last answer of the server was on its way for so long."""
    store._time._told_at += LATE_US


async def by_age(store: PostgresStore) -> list[int]:
    """Runs 1 to 9, as far as they are queued."""
    rows = await store.arrivals(list(range(1, 10)))
    return [row.seq for row in sorted(rows, key=lambda row: (row.queued_at, row.seq))]


@pytest.mark.parametrize("in_line", [False, True])
async def test_behind_the_first_run_of_a_lane(
    one: PostgresStore, in_line: bool, monkeypatch: pytest.MonkeyPatch
):
    """The first submission reads twice: without the lock, and behind it. The second is one statement."""
    sync, late = ServerClock.sync, [LATE_US]

    def synced(clock: ServerClock, now: int) -> int:
        return sync(clock, now - (late.pop() if late else 0))

    monkeypatch.setattr(ServerClock, "sync", synced)
    await submitted(one)
    one._opened.write._known.crowded = int(in_line)
    await submitted(one)
    assert not late
    assert await by_age(one) == [1, 2]


async def test_behind_a_run_of_another_process(one: PostgresStore, other: PostgresStore):
    for store in (one, other, one):
        await submitted(store)
    answered_late(other)
    await submitted(other)
    await submitted(other)
    assert await by_age(one) == [1, 2, 3, 4, 5]


async def test_behind_a_run_that_is_tried_again(one: PostgresStore):
    leader = await SceneLeader.stand(one)
    first, _ = await submitted(one), await submitted(one)
    await leader.start(first.seq)
    await leader.end(first.seq, "failed")
    answered_late(one)
    await one.retry([first.id])
    one._opened.write._known.crowded = 1
    await submitted(one)
    assert await by_age(one) == [2, 1, 3]


def test_an_answer_that_was_overtaken_does_not_set_the_time_back():
    clock = ServerClock(None)
    clock.sync(10 * SECOND)
    assert clock.sync(10 * SECOND - LATE_US) >= 10 * SECOND
    # By more, the server's clock was set back.
    assert clock.sync(8 * SECOND) < 9 * SECOND
