# ruff: noqa: S101
"""Reads of runs and history, large values, and what a leader gathers."""

from __future__ import annotations

import asyncio

import pytest

from locktender.base.changes import End
from locktender.base.clock import SECOND
from locktender.base.errors import NotFound
from locktender.base.model import LogRow, NewestLogs, Request
from locktender.store.protocol import (
    BEGINNING,
    LATEST,
    Accept,
    EventFilter,
    Finish,
    Follow,
    Gather,
    RunFilter,
)
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    history,
    join,
    new_run,
    offered,
    set_rule,
    submit,
    submitted,
)


class TestLooking:
    async def test_the_newest_lines_of_a_run_are_read_first(self, world: StoreScene) -> None:
        store = await world.open()
        _, run, pairs = await offered(store, tasks=3)
        (first, a), (second, b), (third, c) = pairs
        rows = [
            LogRow(first, a, 1, b"lines", 5, last_at=30),
            LogRow(second, b, 1, b"lines", 7, last_at=10),
            LogRow(third, c, 1, b"lines", 2, last_at=20),
        ]
        await store.keep_logs([*rows, LogRow(first + (1 << 20), 7, 1, b"of another run", 9, 99)])
        await store.keep_logs([rows[1]._replace(lines=8, last_at=40)])

        found = await store.newest_logs(NewestLogs(run))
        assert [(each.row.task, each.row.last_at) for each in found] == [
            (second, 40),
            (first, 30),
            (third, 20),
        ]
        assert [(each.node, each.idx) for each in found] == [
            (task.node, task.idx)
            for each in found
            for task in await store.tasks(run)
            if task.id == each.row.task
        ]
        assert await store.newest_logs(NewestLogs(run, limit=2)) == found[:2]
        last = found[1].row
        place = last.last_at, last.task, last.token
        assert await store.newest_logs(NewestLogs(run, before=place)) == found[2:]
        assert await store.newest_logs(NewestLogs(run, third)) == found[2:]
        assert await store.newest_logs(NewestLogs(run, third, (20, third, c))) == []
        assert await store.log_total(run, None, 10) == (3, 15)
        assert (await store.log_total(run, None, 2)).attempts == 2
        assert await store.log_total(run, third, 10) == (1, 2)
        assert await store.log_total(run + 2, None, 10) == (0, 0)

    async def test_failed_runs_are_read_by_their_end(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        rows = await submit(store, *(new_run() for _ in range(5)))
        await leader.start(*(row.seq for row in rows))
        ends = ((3, "timed_out"), (0, "failed"), (4, "succeeded"), (2, "failed"))
        for at, state in ends:
            world.clock.advance(SECOND)
            await leader.end(rows[at].seq, state)
        found = [row.id for row in await store.failed_lately(10)]
        assert found == [rows[at].id for at in (2, 0, 3)]
        assert [row.id for row in await store.failed_lately(1)] == found[:1]

    async def test_runs_by_key_newest_first(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        first = await submitted(store, key="k")
        await leader.end(first.seq, "cancelled", "queued")
        again, _ = await submitted(store, key="k"), await submitted(store, key="other")
        found = await store.runs(RunFilter(key="k"))
        assert [row.id for row in found] == [again.id, first.id]
        assert await store.runs(RunFilter(key="k", before=again.seq)) == found[1:]

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

    async def test_states_of_many_runs_by_one_question(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        a, b = await submit(store, new_run(), new_run())
        await leader.start(a.seq)
        await leader.end(a.seq, "failed")
        asked = [a.seq, b.seq, b.seq + 1_000, *range(10_000, 12_000)]
        assert await store.run_states(asked) == {a.seq: "failed", b.seq: "queued"}
        assert await store.run_states([]) == {}

    async def test_ids_flows_and_tags_by_number(self, world: StoreScene) -> None:
        store = await world.open()
        a, b = await submit(store, new_run(tags={"team": "a"}), new_run(flow="other"))
        found = await store.run_labels([a.seq, b.seq, b.seq + 1_000])
        assert {seq: tuple(label) for seq, label in found.items()} == {
            a.seq: (a.id, found[a.seq].flow, {"team": "a"}),
            b.seq: (b.id, "other", {}),
        }
        assert await store.run_labels([]) == {}

    async def test_following_from_now_on(self, world: StoreScene) -> None:
        store = await world.open()
        [before] = await submit(store, new_run())
        place = await store.follow(Follow(LATEST))
        assert place.events == []
        assert (await store.follow(Follow(place.cursor))).events == []
        [after] = await submit(store, new_run())
        found = await store.follow(Follow(place.cursor))
        assert [row.run for row in found.events] == [after.seq] != [before.seq]

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


class TestGathering:
    async def test_own_events_are_left_out_but_passed_over(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        after = (await store.load()).cursor
        run = await submitted(store)
        await leader.start(run.seq)
        gathered = await store.gather(Gather(after, leader.actor))
        assert [(event.run, event.actor) for event in gathered.events] == [(run.seq, "client")]
        for cursor in (gathered.cursor, (await store.load()).cursor):
            again = await store.gather(Gather(cursor, leader.actor))
            assert again.events == []
            assert (await store.gather(Gather(again.cursor, leader.actor))).events == []

    async def test_pages_follow_each_other_without_a_gap(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await submit(store, *(new_run() for _ in range(25)))
        seen: list[int] = []
        after = BEGINNING
        for _ in range(4):
            gathered = await store.gather(Gather(after, leader.actor, limit=10))
            seen += [event.run for event in gathered.events]
            after = gathered.cursor
        assert len(seen) == len(set(seen)) == 25

    async def test_rows_of_ended_tasks_come_along(self, world: StoreScene) -> None:
        store = await world.open()
        leader, _, pairs = await offered(store, tasks=3)
        after = (await store.load()).cursor
        await store.accept(Accept("w1", pairs))
        gathered = await store.gather(Gather(after, leader.actor))
        assert gathered.tasks == []
        (task, given), (declined, other), _ = pairs
        await store.finish(
            Finish(
                "w1",
                [
                    End(task, given, "completed", b"7"),
                    End(declined, other, "handed_back", reason="draining"),
                ],
            )
        )
        gathered = await store.gather(Gather(gathered.cursor, leader.actor))
        assert [(row.id, row.state, row.output) for row in gathered.tasks] == [
            (task, "completed", b"7"),
            (declined, "handed_back", None),
        ]

    async def test_requests_stay_until_they_are_done(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await store.ask([Request("cancel", "run", who="me", reason="why not")])
        [stored] = (await store.gather(Gather(BEGINNING, leader.actor))).requests
        assert (await store.gather(Gather(BEGINNING, leader.actor))).requests == [stored]
        assert stored.request == Request("cancel", "run", who="me", reason="why not")
        await leader.commit(requests_done=[stored.seq])
        assert (await store.gather(Gather(BEGINNING, leader.actor))).requests == []

    async def test_workers_come_only_when_something_changed(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store)

        async def workers() -> list[str] | None:
            found = (await store.gather(Gather(BEGINNING, leader.actor))).workers
            return None if found is None else [f"{each.id}:{each.claim}" for each in found]

        assert await workers() == []
        assert await workers() is None
        await join(other, "w1")
        assert await workers() == ["w1:10"]
        # A renewal alone is no news.
        await join(other, "w1")
        assert await workers() is None
        await join(other, "w1", claim=3)
        assert await workers() == ["w1:3"]
        await other.leave("w1")
        assert await workers() == []

    async def test_a_changed_limit_is_read(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store)
        await set_rule(other, "pool", "db", {"limit": 4})
        gathered = await store.gather(Gather(BEGINNING, leader.actor))
        assert gathered.limits_changed
        assert not (await store.gather(Gather(gathered.cursor, leader.actor))).limits_changed
