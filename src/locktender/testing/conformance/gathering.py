# ruff: noqa: S101
"""Gathering: what others committed, all of it, in order, and nothing of one's own."""

from __future__ import annotations

from locktender.base.changes import End
from locktender.base.model import Request
from locktender.store.protocol import Accept, Finish, Gather
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    join,
    new_run,
    offered,
    set_rule,
    submit,
    submitted,
)


class TestGathering:
    async def test_own_events_are_left_out_but_passed_over(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        after = (await store.load()).seq
        run = await submitted(store)
        await leader.start(run.seq)
        gathered = await store.gather(Gather(after, leader.actor))
        assert [(event.run, event.actor) for event in gathered.events] == [(run.seq, "client")]
        assert gathered.seq == (await store.load()).seq
        again = await store.gather(Gather(gathered.seq, leader.actor))
        assert again.events == []
        assert again.seq == gathered.seq

    async def test_pages_follow_each_other_without_a_gap(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await submit(store, *(new_run() for _ in range(25)))
        seen: list[int] = []
        after = 0
        for _ in range(4):
            gathered = await store.gather(Gather(after, leader.actor, limit=10))
            seen += [event.run for event in gathered.events]
            after = gathered.seq
        assert len(seen) == len(set(seen)) == 25

    async def test_rows_of_ended_tasks_come_along(self, world: StoreScene) -> None:
        store = await world.open()
        leader, _, pairs = await offered(store, tasks=3)
        after = (await store.load()).seq
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
        gathered = await store.gather(Gather(gathered.seq, leader.actor))
        assert [(row.id, row.state, row.output) for row in gathered.tasks] == [
            (task, "completed", b"7"),
            (declined, "handed_back", None),
        ]

    async def test_requests_stay_until_they_are_done(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await store.ask([Request("cancel", "run", who="me", reason="why not")])
        [stored] = (await store.gather(Gather(0, leader.actor))).requests
        assert (await store.gather(Gather(0, leader.actor))).requests == [stored]
        assert stored.request == Request("cancel", "run", who="me", reason="why not")
        await leader.commit(requests_done=[stored.seq])
        assert (await store.gather(Gather(0, leader.actor))).requests == []

    async def test_workers_come_only_when_something_changed(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store)

        async def workers() -> list[str] | None:
            found = (await store.gather(Gather(0, leader.actor))).workers
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

    async def test_a_changed_limit_is_news(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store)
        await set_rule(other, "pool", "db", {"limit": 4})
        gathered = await store.gather(Gather(0, leader.actor))
        assert gathered.limits_changed
        assert not (await store.gather(Gather(gathered.seq, leader.actor))).limits_changed
