"""The common event and the common wake-up take few round trips. Where that may not be, the other way decides."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from locktender.base.commits import EventWait, RunEvents, RunWait
from locktender.base.errors import NotLeader
from locktender.base.events import Change
from locktender.base.ids import task_id
from locktender.base.limits import TagRule
from locktender.store.postgres import quick_wake, recovery
from locktender.store.postgres.options import parse
from locktender.store.postgres.session import SUBMITTERS, PostgresSession, Row
from locktender.store.postgres.store import PostgresStore
from locktender.store.protocol import MAX_MAIL, EventSent, SendEvent, Submit, Wake, Woken
from locktender.testing.conformance.world import (
    DIGEST,
    GRAPH,
    SceneLeader,
    history,
    new_run,
    set_rule,
)
from locktender.testing.postgres_server import connected

pytest_plugins = ["locktender.testing.postgres"]
HOUR = 3_600_000_000


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every round trip of a store's statements."""
    made: list[str] = []
    fetch = PostgresSession.fetch

    async def counted(self: PostgresSession, text: str, *params: object) -> list[Row]:
        made.append(text)
        return await fetch(self, text, *params)

    monkeypatch.setattr(PostgresSession, "fetch", counted)
    return made


class Scene:
    def __init__(self, store: PostgresStore, leader: SceneLeader) -> None:
        self.store = store
        self.leader = leader
        self.runs: dict[int, str] = {}

    async def waiting(self, **given: object) -> int:
        """A run that waits for an event `go`."""
        wanted = msgspec.structs.replace(new_run(), **given)
        [made] = await self.store.submit(Submit([wanted], {DIGEST: GRAPH}))
        run, now = made.seq, await self.store.now()
        await self.leader.start(run)
        change = Change("run", 0, "running", "waiting", 0, {"wake_at": now + HOUR})
        await self.leader.commit(
            waits_opened=[EventWait(task_id(run, 0), run, "go", "{}", now, now + HOUR)],
            runs_waiting=[RunWait(run, now + HOUR)],
            events=[RunEvents(run, [change])],
        )
        self.runs[run] = made.id
        return run

    async def send(self, run: int, key: str = "1") -> EventSent:
        return await self.store.send(SendEvent(self.runs[run], "go", key, b"1"))

    async def wake(self, *runs: int) -> Woken:
        return await self._wake(1_000, runs)

    async def wake_all(self, limit: int = 1_000) -> Woken:
        """As a new leader does, which knows of no event: behind the lock."""
        return await self._wake(limit, None)

    async def _wake(self, limit: int, runs: Sequence[int] | None) -> Woken:
        self.leader.cycle += 1
        leader = self.leader
        return await self.store.wake(Wake(leader.term, leader.cycle, leader.actor, limit, runs))


@asynccontextmanager
async def scene(url: str) -> AsyncGenerator[Scene]:
    """The store knows the limits and the lane of plain runs: one was woken before."""
    store = PostgresStore(url)
    await store.open()
    try:
        made = Scene(store, await SceneLeader.stand(store))
        first = await made.waiting()
        await made.send(first)
        assert len((await made.wake(first)).runs) == 1
        yield made
    finally:
        await store.close()


async def test_an_event_is_one_round_trip_and_a_wake_up_two(postgres_url: str, trips: list[str]):
    async with scene(postgres_url) as made:
        run = await made.waiting()
        trips.clear()
        assert await made.send(run) == EventSent("sent")
        assert len(trips) == 1
        woken = await made.wake(run)
        assert len(trips) == 3
        assert [each.run for each in woken.runs] == [run]
        assert woken.read is not None
        assert woken.read.runs == await made.store.arrivals([run])
        assert woken.read.mails == await made.store.mail_ready([run])
        trips.clear()
        assert (await made.wake(run)).runs == []
        assert len(trips) == 1
        counts = await made.store.counts()
        assert (counts.waiting, counts.active[""], counts.queued) == (0, 2, 2)


async def test_no_run_is_recorded_as_woken_before_its_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    """The clock is read before the runs are found, and they by a clock that has gone on."""
    several = PostgresSession.several

    async def early(self: PostgresSession, *reads: Any, **given: Any) -> list[list[Row]]:
        [[[now]], *rest] = await several(self, *reads, **given)
        return [[[now - HOUR]], *rest]

    async with scene(postgres_url) as made:
        run = await made.waiting()
        wake_at = await made.store.now()
        async with connected(postgres_url) as conn:
            await conn.execute("UPDATE locktender.waiting SET wake_at = $1", wake_at)
        monkeypatch.setattr(PostgresSession, "several", early)
        assert [each.run for each in (await made.wake()).runs] == [run]
        monkeypatch.undo()
        *_, woken = [each for each in await history(made.store, run) if each.subject == "run"]
        assert (woken.after, woken.at) == ("queued", wake_at)


async def test_an_event_sent_while_runs_are_woken_wakes_the_next_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    """Its transaction is the younger one: in the history the run would be woken before its event was sent."""
    fence = recovery.fence

    async with scene(postgres_url) as made:
        run = await made.waiting()

        async def sent_behind_it(tx: PostgresSession, term: int) -> None:
            await fence(tx, term)
            await made.send(run)

        monkeypatch.setattr(recovery, "fence", sent_behind_it)
        assert (await made.wake_all()).runs == []
        monkeypatch.undo()
        assert [each.run for each in (await made.wake_all()).runs] == [run]
        told = [(each.subject, each.after) for each in await history(made.store, run)]
        assert told[-2:] == [("mail", "sent"), ("run", "queued")]


async def test_of_many_runs_with_events_some_are_woken_each_time(
    postgres_url: str,
):
    async with scene(postgres_url) as made:
        runs = [await made.waiting() for _ in range(5)]
        for run in runs:
            await made.send(run)
        first = await made.wake_all(2)
        assert first.next_at is not None
        assert first.next_at <= first.now
        rest = [await made.wake(), await made.wake()]
        woken = [each.run for several in (first, *rest) for each in several.runs]
        assert (len(first.runs), sorted(woken)) == (2, runs)


async def test_the_same_event_is_stored_once(postgres_url: str):
    async with scene(postgres_url) as made:
        run = await made.waiting()
        assert [(await made.send(run)).outcome for _ in range(2)] == ["sent", "repeated"]
        assert (await made.send(run, "2")).outcome == "sent"
        first, second = [each for each in await history(made.store, run) if each.subject == "mail"]
        assert [first.data["id"], second.data["id"]] == ["1", "2"]
        assert first.data["n"] < second.data["n"]


async def test_the_mailbox_has_an_end(postgres_url: str):
    async with scene(postgres_url) as made, connected(postgres_url) as conn:
        run = await made.waiting()
        await conn.execute(
            "INSERT INTO locktender.mail (run, name, id, match, at, payload)"
            f" SELECT {run}, 'go', 'm' || n, '{{}}', 0, '1' FROM generate_series(2, {MAX_MAIL}) n"
        )
        outcomes = [(await made.send(run, key)).outcome for key in ("a", "b")]
        assert outcomes == ["sent", "full"]


async def test_a_submitter_that_holds_the_lock_goes_first(postgres_url: str):
    lock = "({}, {})".format(*parse(postgres_url).lock(SUBMITTERS))
    async with scene(postgres_url) as made, connected(postgres_url) as submitter:
        run = await made.waiting()
        await made.send(run)
        await submitter.execute(f"SELECT pg_advisory_lock{lock}")
        assert (await made.wake(run)).busy
        await submitter.execute(f"SELECT pg_advisory_unlock{lock}")
        assert [each.run for each in (await made.wake(run)).runs] == [run]


async def test_an_old_read_of_admissions_is_found_out(
    postgres_url: str,
):
    async def admissions() -> int:
        async with connected(postgres_url) as conn:
            return await conn.fetchval(
                "SELECT value FROM locktender.meta WHERE name = 'admissions'"
            )

    async with scene(postgres_url) as made:
        run = await made.waiting()
        await made.send(run)
        before = await admissions()
        await made.wake(run)
        assert await admissions() > before


async def test_other_limits_mean_another_lane(postgres_url: str):
    async with scene(postgres_url) as made:
        plain, tagged = await made.waiting(), await made.waiting(tags={"tenant": "a"})
        await set_rule(made.store, "tag", "tenant=*", TagRule("tenant", per_value=True, limit=1))
        await made.send(plain)
        await made.send(tagged)
        lanes = {each.run: each.lane for each in (await made.wake(plain, tagged)).runs}
        assert lanes[plain] != lanes[tagged]


async def test_a_lane_that_is_gone_is_made_again(postgres_url: str):
    async with scene(postgres_url) as made:
        run = await made.waiting()
        await made.send(run)
        async with connected(postgres_url) as conn:
            await conn.execute("DELETE FROM locktender.queue; DELETE FROM locktender.lane")
            [woken] = (await made.wake(run)).runs
            lanes = [each["id"] for each in await conn.fetch("SELECT id FROM locktender.lane")]
        assert lanes == [woken.lane]


async def test_a_leader_whose_term_is_over_wakes_nobody(postgres_url: str):
    async with scene(postgres_url) as made:
        run = await made.waiting()
        await made.send(run)
        await made.store.resign("l1", made.leader.term)
        await SceneLeader.stand(made.store, "l2")
        with pytest.raises(NotLeader):
            await made.wake(run)
        assert await made.store.arrivals([run]) == []
        assert (await made.store.counts()).waiting == 1


async def test_many_are_woken_behind_the_lock(postgres_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quick_wake, "MAX_QUICK_WAKES", 2)
    async with scene(postgres_url) as made:
        runs = [await made.waiting() for _ in range(3)]
        for run in runs:
            await made.send(run)
        woken = await made.wake(*runs)
        assert woken.read is None
        assert [each.run for each in woken.runs] == runs
