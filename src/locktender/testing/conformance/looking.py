# ruff: noqa: S101
"""Reads of runs and history, and values kept by reference."""

from __future__ import annotations

import asyncio

import pytest

from locktender.base.errors import NotFound
from locktender.store.protocol import EventFilter, RunFilter
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    history,
    new_run,
    offered,
    submit,
    submitted,
)


class TestLooking:
    async def test_runs_by_state_tags_and_flow_newest_first(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        a, b, c = await submit(
            store,
            new_run(tags={"team": "a", "env": "dev"}),
            new_run(tags={"team": "a"}, flow="other"),
            new_run(tags={"team": 'b"\\'}),
        )
        await leader.start(a.seq, c.seq)
        await leader.end(c.seq, "failed")

        async def found(**where: object) -> list[int]:
            return [row.seq for row in await store.runs(RunFilter(**where))]  # pyright: ignore[reportArgumentType]

        assert await found() == [c.seq, b.seq, a.seq]
        assert await found(limit=2) == [c.seq, b.seq]
        assert await found(before=b.seq) == [a.seq]
        assert await found(states=["queued"]) == [b.seq]
        assert await found(states=["failed", "running"]) == [c.seq, a.seq]
        assert await found(states=["failed", "running"], limit=1) == [c.seq]
        assert await found(states=[]) == []
        assert await found(tags={"team": "a"}) == [b.seq, a.seq]
        assert await found(tags={"team": "a", "env": "dev"}) == [a.seq]
        assert await found(tags={"team": 'b"\\'}) == [c.seq]
        assert await found(flow="other", states=["queued"], tags={"team": "a"}) == [b.seq]

    async def test_holds_of_slots_are_left_out_unless_they_are_asked_for(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        run, hold = await submit(store, new_run(), new_run(kind="hold", flow="locktender:hold"))

        for states in (None, ["queued"]):
            found = await store.runs(RunFilter(states=states))
            assert [row.seq for row in found] == [run.seq]
            found = await store.runs(RunFilter(states=states, flow="locktender:hold"))
            assert [row.seq for row in found] == [hold.seq]

    async def test_what_is_not_there(self, world: StoreScene) -> None:
        store = await world.open()
        assert await store.run("nobody") is None
        assert await store.tasks(99) == []
        assert await store.queue(10) == []
        with pytest.raises(NotFound):
            await store.graph("nothing")

    async def test_history_in_commit_order_and_by_run(self, world: StoreScene) -> None:
        store = await world.open()
        _, run, _ = await offered(store)
        await submitted(store)
        rows = await store.events(EventFilter())
        assert [row.seq for row in rows] == sorted({row.seq for row in rows})
        assert [row.run for row in await store.events(EventFilter(run=run))] == [run] * 3
        assert await store.events(EventFilter(after=rows[1].seq, limit=2)) == rows[2:4]
        later = await store.events(EventFilter(run=run, after=rows[2].seq, limit=1))
        assert [row.run for row in later] == [run]
        assert (await history(store, run))[0].after == "queued"

    async def test_counts_are_of_rows(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, _ = await offered(store, tasks=2)
        await leader.commit()
        await submitted(store)
        counts = await store.counts()
        assert (counts.queued, counts.executing) == (1, 1)
        assert counts.held == {"db": 2}
        assert run

    async def test_blobs(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        data = bytes(range(256)) * 2_000
        digests = await asyncio.gather(store.put_blob(data), other.put_blob(data))
        assert digests[0] == digests[1]
        assert await other.get_blob(digests[0]) == data
        empty = await store.put_blob(b"")
        assert empty != digests[0]
        assert await store.get_blob(empty) == b""
        for missing in ("0" * 64, "../secret", ""):
            with pytest.raises(NotFound):
                await store.get_blob(missing)

    async def test_what_one_store_commits_another_reads(self, world: StoreScene) -> None:
        store = await world.open()
        run = await submitted(store)
        await store.close()
        other = await world.open()
        row = await other.run(run.id)
        assert row is not None
        assert row.seq == run.seq
        # A closed store can be opened again.
        await store.open()
        assert await store.run(run.id) == row
