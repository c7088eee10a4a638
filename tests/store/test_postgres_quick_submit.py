"""The common submission is one statement. Where that may not be, it writes nothing and the other way decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from locktender.base.limits import TagRule
from locktender.base.model import NewRun
from locktender.base.schedules import ScheduleSpec
from locktender.store.postgres import client_verbs, quick_submit
from locktender.store.postgres.options import parse
from locktender.store.postgres.session import SUBMITTERS, PostgresSession, Row
from locktender.store.postgres.store import PostgresStore
from locktender.store.protocol import SetSchedule, Submit, TickMove, Wake
from locktender.testing.conformance.world import DIGEST, GRAPH, SceneLeader, new_run, set_rule
from locktender.testing.postgres_server import connected

pytest_plugins = ["locktender.testing.postgres"]
GRAPHS = {DIGEST: GRAPH}


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way each submission went."""
    taken: list[str] = []
    quickly = client_verbs.submit_quickly

    async def noting(*given: object) -> object:
        answers = await quickly(*given)  # pyright: ignore[reportArgumentType]
        taken.append("slow" if answers is None else "quick")
        return answers

    monkeypatch.setattr(client_verbs, "submit_quickly", noting)
    return taken


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    """A store that knows the limits and the lane of plain runs."""
    store = PostgresStore(url)
    await store.open()
    try:
        await store.submit(Submit([new_run()], GRAPHS))
        yield store
    finally:
        await store.close()


async def rows(url: str) -> tuple[int, int, int, int]:
    """Runs, queued runs, admitted runs, and the last number."""
    async with connected(url) as conn:
        found = await conn.fetchrow(
            "SELECT (SELECT count(*) FROM locktender.run), (SELECT count(*) FROM locktender.queue),"
            " (SELECT admitted FROM locktender.counter WHERE name = ''),"
            " (SELECT value FROM locktender.meta WHERE name = 'last_run')"
        )
    assert found is not None
    return found[0], found[1], found[2], found[3]


async def test_a_plain_submission_is_quick(postgres_url: str, ways: list[str]):
    async with opened(postgres_url) as store:
        first = await store.submit(Submit([new_run(), new_run()], GRAPHS))
        second = await store.submit(Submit([new_run()], {}))
        heads = await store.arrivals([2, 3, 4])

    assert ways == ["slow", "quick", "quick"]
    assert [each.seq for each in (*first, *second)] == [2, 3, 4]
    assert [row.id for row in heads] == [each.id for each in (*first, *second)]
    assert await rows(postgres_url) == (4, 4, 4, 4)


async def test_a_repetition_is_answered_and_not_stored(postgres_url: str, ways: list[str]):
    run = new_run()
    async with opened(postgres_url) as store:
        first = await store.submit(Submit([run], GRAPHS))
        again = await store.submit(Submit([run], GRAPHS))
        twice = await store.submit(Submit([new_run(), run, run], GRAPHS))

    assert ways == ["slow", "quick", "slow", "slow"]
    assert first == again == twice[1:2] == twice[2:]
    assert await rows(postgres_url) == (3, 3, 3, 3)


@pytest.mark.parametrize("key", ["k", None])
async def test_the_ceiling_holds(postgres_url: str, ways: list[str], key: str | None):
    async with opened(postgres_url) as store:
        await set_rule(store, "active", "", {"limit": 3})
        keyed = msgspec.structs.replace(new_run(), key=key)
        await store.submit(Submit([keyed], GRAPHS))
        both = await store.submit(Submit([new_run(), new_run()], GRAPHS))
        some = await store.submit(Submit([new_run(), new_run()], GRAPHS, partial=True))

    assert [each.outcome for each in both] == ["rejected", "rejected"]
    assert [each.outcome for each in some] == ["created", "rejected"]
    assert await rows(postgres_url) == (3, 3, 3, 3)


async def test_other_limits_mean_other_lanes(postgres_url: str, ways: list[str]):
    tagged = msgspec.structs.replace(new_run(), tags={"tenant": "a"})
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        await set_rule(other, "tag", "tenant=*", TagRule("tenant", per_value=True, limit=1))
        [answer] = await store.submit(Submit([tagged], GRAPHS))
        [plain] = await store.arrivals([1])
        [row] = await store.arrivals([answer.seq])

    assert ways[-1] == "slow"
    assert row.lane != plain.lane


async def test_a_lane_or_a_graph_that_is_gone_is_made_again(postgres_url: str, ways: list[str]):
    async with opened(postgres_url) as store:
        async with connected(postgres_url) as conn:
            await conn.execute("DELETE FROM locktender.queue; DELETE FROM locktender.lane")
        [answer] = await store.submit(Submit([new_run()], GRAPHS))
        [row] = await store.arrivals([answer.seq])
        async with connected(postgres_url) as conn:
            lanes = [each["id"] for each in await conn.fetch("SELECT id FROM locktender.lane")]
    assert ways == ["slow", "slow"]
    assert lanes == [row.lane]


async def test_a_clock_that_was_set_is_read_again(postgres_url: str, ways: list[str]):
    async with opened(postgres_url) as store:
        store._time.sync(await store.now() + 3_600_000_000)
        [ahead] = await store.submit(Submit([new_run()], GRAPHS))
        [right] = await store.submit(Submit([new_run()], GRAPHS))
        before, after = await store.arrivals([ahead.seq, right.seq])

    assert ways == ["slow", "slow", "quick"]
    assert after.queued_at - before.queued_at < 60_000_000


async def test_submitters_beside_each_other_get_numbers_of_their_own(postgres_url: str):
    async def many(store: PostgresStore) -> list[int]:
        return [(await store.submit(Submit([new_run()], GRAPHS)))[0].seq for _ in range(40)]

    async with (
        opened(postgres_url) as one,
        opened(postgres_url) as two,
        opened(postgres_url) as three,
    ):
        found = await asyncio.gather(many(one), many(two), many(three))

    numbers = sorted(number for each in found for number in each)
    assert numbers == list(range(4, 124))
    assert await rows(postgres_url) == (123, 123, 123, 123)


async def test_submitters_beside_each_other_never_exceed_the_ceiling(postgres_url: str):
    async def many(store: PostgresStore) -> list[str]:
        return [(await store.submit(Submit([new_run()], GRAPHS)))[0].outcome for _ in range(20)]

    async with opened(postgres_url) as one, opened(postgres_url) as two:
        await set_rule(one, "active", "", {"limit": 25})
        found = await asyncio.gather(many(one), many(two))

    outcomes = [outcome for each in found for outcome in each]
    assert outcomes.count("created") == 23
    assert outcomes.count("rejected") == 17
    assert await rows(postgres_url) == (25, 25, 25, 25)


async def test_large_submissions_go_the_other_way(postgres_url: str, ways: list[str]):
    runs: list[NewRun] = [new_run() for _ in range(quick_submit.MAX_QUICK_RUNS + 1)]
    async with opened(postgres_url) as store:
        await store.submit(Submit(runs, GRAPHS))
    assert ways == ["slow", "slow"]


async def test_many_submitters_stand_in_line_and_waste_little(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    lost = 0
    write_at_once = client_verbs._write_at_once  # pyright: ignore[reportPrivateUsage]

    async def counting(*given: object) -> bool:
        nonlocal lost
        written = await write_at_once(*given)  # pyright: ignore[reportArgumentType]
        lost += not written
        return written

    monkeypatch.setattr(client_verbs, "_write_at_once", counting)
    stores = [PostgresStore(postgres_url) for _ in range(8)]
    for store in stores:
        await store.open()
        await store.submit(Submit([new_run()], GRAPHS))

    async def several(store: PostgresStore) -> list[int]:
        answers = [await store.submit(Submit([new_run()], GRAPHS)) for _ in range(40)]
        return [each.seq for answer in answers for each in answer]

    numbers = [seq for each in await asyncio.gather(*map(several, stores)) for seq in each]
    for store in stores:
        await store.close()

    # Who lost a race stands in line for a while: no store loses two of so few.
    assert lost <= len(stores)
    assert len(set(numbers)) == 8 * 40
    runs, queued, admitted, last = await rows(postgres_url)
    assert (runs, queued, admitted) == (328, 328, 328)
    assert last >= max(numbers)


async def _stands_in_line(url: str) -> None:
    waiting = (
        "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
        " WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted"
    )
    async with connected(url) as conn, asyncio.timeout(60):
        while not await conn.fetchval(waiting):
            pass


@pytest.mark.parametrize("full", [False, True])
async def test_who_stands_in_line_decides_by_what_is_there_then(postgres_url: str, full: bool):
    """One round trip, though others are admitted after it was sent."""
    lock = "({}, {})".format(*parse(postgres_url).lock(SUBMITTERS))
    async with opened(postgres_url) as store, connected(postgres_url) as before:
        await set_rule(store, "active", "", {"limit": 10})
        await store.submit(Submit([new_run()], GRAPHS))
        await before.execute(f"SELECT pg_advisory_lock{lock}")
        known = store._opened.write._known
        known.crowded = 1
        waiting = asyncio.create_task(store.submit(Submit([new_run()], GRAPHS)))
        await _stands_in_line(postgres_url)
        await before.execute("UPDATE locktender.meta SET value = 30 WHERE name = 'last_run'")
        if full:
            await before.execute("UPDATE locktender.counter SET admitted = 10 WHERE name = ''")
        assert not waiting.done()
        await before.execute(f"SELECT pg_advisory_unlock{lock}")
        [answer] = await waiting
        assert known.crowded == 0
        assert answer.outcome == ("rejected" if full else "created")
        assert full or answer.seq == 31
        assert len(await store.arrivals([31])) == (not full)


async def test_in_line_a_submission_is_one_round_trip(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    trips: list[str] = []
    fetch = PostgresSession.fetch

    async def counted(self: PostgresSession, text: str, *params: object) -> list[Row]:
        trips.append(text)
        return await fetch(self, text, *params)

    async with opened(postgres_url) as store:
        await store.submit(Submit([new_run()], GRAPHS))
        store._opened.write._known.crowded = 2
        monkeypatch.setattr(PostgresSession, "fetch", counted)
        first = await store.submit(Submit([new_run(), new_run()], GRAPHS))
        second = await store.submit(Submit([new_run()], {}))
        assert len(trips) == 2
    assert [each.seq for each in (*first, *second)] == [3, 4, 5]
    assert await rows(postgres_url) == (5, 5, 5, 5)


async def test_the_leader_does_not_wait_for_submitters(postgres_url: str):
    lock = "({}, {})".format(*parse(postgres_url).lock(SUBMITTERS))
    async with opened(postgres_url) as store, connected(postgres_url) as submitter:
        leader = await SceneLeader.stand(store)
        await store.submit(Submit([new_run(delay_us=1)], GRAPHS))
        spec = ScheduleSpec("f", every_us=1_000_000)
        row = await store.set_schedule(SetSchedule("s", "set", "me", spec))
        assert row is not None
        move = TickMove("s", row.version, row.state, 99)
        await submitter.execute(f"SELECT pg_advisory_lock{lock}")
        for patient in (False, True):
            woken = await store.wake(Wake(leader.term, 2, leader.actor, patient=patient))
            assert (woken.busy, woken.runs) == (True, [])
            assert not await store.tick(leader.term, [move], patient=patient)
        await leader.commit()  # it goes on meanwhile
        await submitter.execute(f"SELECT pg_advisory_unlock{lock}")
        woken = await store.wake(Wake(leader.term, 3, leader.actor))
        assert (woken.busy, len(woken.runs)) == (False, 1)
        assert await store.tick(leader.term, [move])
        [row] = await store.schedules(["s"])
        assert row.next_at == 99
