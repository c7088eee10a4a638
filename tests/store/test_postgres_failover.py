"""An older copy of the database takes the place of the one that everybody used."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import pytest

from locktender.base.clock import SECOND
from locktender.base.errors import HistoryReplaced, NotLeader, StoreError
from locktender.base.ids import token
from locktender.store.postgres import PostgresStore
from locktender.store.postgres.leader_verbs import TERMS_SKIPPED
from locktender.store.protocol import Elect, Gather, ReassignLanes
from locktender.testing.conformance.world import SceneLeader, offered, submitted
from locktender.testing.postgres_server import execute, run

pytest_plugins = ["locktender.testing.postgres"]
LEASE = 60 * SECOND


@pytest.fixture
def lagging(postgres_server: str, postgres_url: str) -> Callable[[], Callable[[], None]]:
    """Makes a copy of the database as it is now; what it returns puts the copy in its place."""
    name = urlsplit(postgres_url).path[1:]

    def make() -> Callable[[], None]:
        copy = f"{name}_{os.urandom(3).hex()}"

        def swap() -> None:
            run(execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)"))
            run(execute(postgres_server, f"ALTER DATABASE {copy} RENAME TO {name}"))

        run(execute(postgres_server, f"CREATE DATABASE {copy} TEMPLATE {name}"))
        return swap

    return make


async def opened(url: str) -> PostgresStore:
    store = PostgresStore(url)
    await store.open()
    return store


async def retried(verb: Callable[[], Awaitable[object]]) -> None:
    """Again, where the connection was lost: the first time nothing was written."""
    try:
        await verb()
    except StoreError:
        await verb()


async def renewal_is_refused(store: PostgresStore, leader: SceneLeader) -> None:
    assert (await store.elect(Elect(leader.owner, LEASE, leader.term))).term == 0


async def test_terms_and_tokens_do_not_go_back(
    postgres_url: str, lagging: Callable[[], Callable[[], None]]
) -> None:
    store = await opened(postgres_url)
    leader, _, _ = await offered(store)
    version = (await store._lead(lambda tx: tx.row("limits_version")))[0]
    await store.close()
    swap = lagging()
    await store.open()
    # Given terms that the copy does not know of.
    lost = [(await store.elect(Elect(name, LEASE))).term for name in ("l1", "l1")]
    assert lost == [leader.term + 1, leader.term + 2]

    swap()
    await store.close()
    await store.open()

    # Then the next term is higher than all of them, and so is every token it gives out.
    now = await store.elect(Elect("l1", LEASE))
    assert now.term == leader.term + 1 + TERMS_SKIPPED
    assert token(now.term, 0) > max(token(term, 2**40 - 1) for term in lost)
    # and no process takes limits of the lost part for those in force
    assert (await store._lead(lambda tx: tx.row("limits_version")))[0] > version
    # A server that stays the same gives the next one.
    assert (await store.elect(Elect("l1", LEASE))).term == now.term + 1
    await store.close()


async def test_a_leader_of_the_lost_history_writes_nothing(
    postgres_url: str, lagging: Callable[[], Callable[[], None]]
) -> None:
    """The copy has its term and its last cycle; what others did since is lost, and the leader has read it."""
    store = await opened(postgres_url)
    leader = await SceneLeader.stand(store, "l1", LEASE)
    queued = await submitted(store)
    await store.close()
    swap = lagging()
    await store.open()
    await submitted(store)
    cursor = (await store.load()).cursor

    swap()

    with pytest.raises(NotLeader, match="restarted or replaced"):
        await retried(lambda: leader.start(queued.seq))
    with pytest.raises(HistoryReplaced):
        await store.gather(Gather(cursor, leader.actor))
    await retried(lambda: renewal_is_refused(store, leader))
    with pytest.raises(NotLeader):
        await store.reassign_lanes(ReassignLanes(leader.term))
    # It stands again, reads everything, and finds the run that the copy has.
    again = await SceneLeader.stand(store, "l1", LEASE)
    await again.start(queued.seq)
    [row] = (await store.load()).runs
    assert row.seq == queued.seq
    await store.close()
