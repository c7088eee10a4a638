"""A notification names the run that an event was sent to: the leader need not read the history first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.server_harness import PATIENCE, process, until

from locktender import RunState, connect_async, flow, step, wait_event
from locktender.base.events import unpack
from locktender.kernel.scheduler import Scheduler
from locktender.store.postgres.session import PostgresSession, Row
from locktender.store.protocol import ChangeNotice, Gathered
from locktender.testing import check_history

pytest_plugins = ["locktender.testing.postgres"]


@step
async def told(n: int) -> int:
    return n + 1


@flow
def waits_for_one() -> int:
    return told(wait_event("go"))


async def test_an_event_read_in_two_ways_is_delivered_once(postgres_url: str):
    """First by the notification alone, then by the history alone, then by both."""
    by = {"history": True, "notification": True}
    async with (
        process(postgres_url, lead=True, work=True) as (_, engine),
        connect_async(postgres_url) as client,
    ):
        await until(lambda: engine.leader, "a leader")
        leader: Any = engine.leader
        gather, notice = leader._changes.gather, leader.notice

        async def gather_the_rest(scheduler: Scheduler) -> Gathered:
            found: Gathered = await gather(scheduler)
            kept = [row for row in found.events if unpack(row)[0].subject != "mail"]
            return msgspec.structs.replace(found, events=kept) if not by["history"] else found

        def notice_some(notified: ChangeNotice) -> None:
            if not by["notification"]:
                notified = msgspec.structs.replace(notified, mailed=())
            notice(notified)

        leader._changes.gather, leader.notice = gather_the_rest, notice_some
        for by["history"], by["notification"] in ((False, True), (True, False), (True, True)):
            run = await client.submit(waits_for_one)
            while await run.status() is not RunState.WAITING:
                pass
            await run.send("go", 1)
            assert await run.result(PATIENCE) == 2
        leader._changes.gather, leader.notice = gather, notice
    check_history(postgres_url)


async def test_who_submitted_a_run_sends_to_it_in_one_round_trip(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with connect_async(postgres_url) as client, connect_async(postgres_url) as other:
        run = await client.submit(waits_for_one)
        same = await other.runs.get(run.id)
        trips: list[str] = []
        fetch = PostgresSession.fetch

        async def counted(self: PostgresSession, text: str, *params: object) -> list[Row]:
            trips.append(text)
            return await fetch(self, text, *params)

        monkeypatch.setattr(PostgresSession, "fetch", counted)
        assert await run.send("go", 1, id="a")
        assert len(trips) == 1
        assert not await run.send("go", 1, id="a")
        trips.clear()
        assert await same.send("go", 1)
        assert len(trips) == 3
        assert await same.send("go", 1)
        assert len(trips) == 4
