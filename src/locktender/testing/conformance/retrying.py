# ruff: noqa: S101
"""Retrying ended runs."""

from __future__ import annotations

import pytest

from locktender.base.changes import TaskRow
from locktender.base.clock import SECOND
from locktender.base.errors import NotFound
from locktender.base.ids import task_id
from locktender.store.protocol import Store, Submitted
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    changes_of,
    history,
    set_ceiling,
    submitted,
)


async def ended(
    store: Store, leader: SceneLeader, state: str = "failed", **fields: object
) -> Submitted:
    run = await submitted(store, **fields)
    await leader.start(run.seq)
    await leader.end(run.seq, state)
    return run


class TestRetrying:
    @pytest.mark.parametrize("state", ["failed", "cancelled", "timed_out"])
    async def test_an_ended_run_is_queued_again(self, world: StoreScene, state: str) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader, state, deadline_us=SECOND, priority=3)
        world.clock.advance(SECOND)
        [result] = await store.retry([run.id])
        assert (result.id, result.seq, result.outcome) == (run.id, run.seq, "created")
        row = await store.run(run.id)
        assert row is not None
        assert (row.state, row.generation, row.queued_at) == ("queued", 1, world.clock.now())
        assert (row.verdict, row.output, row.error) == (None, None, None)
        assert (row.started_at, row.ended_at) == (0, 0)
        assert row.deadline_at == world.clock.now() + SECOND
        assert [entry.run.id for entry in await store.queue(5)] == [run.id]
        event = (await history(store, run.seq))[-1]
        assert (event.before, event.after, event.actor) == (state, "queued", "client")
        assert event.data["generation"] == 1
        counts = await store.counts()
        assert (counts.admitted[""], counts.closed[""], counts.active[""]) == (2, 1, 1)

    async def test_finished_tasks_keep_their_outputs(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await leader.start(run.seq)
        task = TaskRow(task_id(run.seq, 0), 0, -1, "completed", output=b"7")
        await leader.commit(tasks_new=[task])
        await leader.end(run.seq, "failed")
        await store.retry([run.id])
        assert await store.tasks(run.seq) == [task]

    async def test_a_repeated_retry_is_one_retry(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader)
        await store.retry([run.id, run.id])
        [again] = await store.retry([run.id])
        assert again.outcome == "created"
        row = await store.run(run.id)
        assert row is not None
        assert row.generation == 1
        assert (await changes_of(store, run.seq)).count(("failed", "queued")) == 1

    async def test_what_succeeded_is_not_run_again(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader, "succeeded")
        [result] = await store.retry([run.id])
        assert result.outcome == "finished"
        assert await store.queue(5) == []

    async def test_a_retry_passes_the_ceiling(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader)
        await set_ceiling(store, 1)
        await submitted(store)
        [result] = await store.retry([run.id])
        assert (result.outcome, result.ceiling, result.limit) == ("rejected", "max_active", 1)
        row = await store.run(run.id)
        assert row is not None
        assert (row.state, row.generation) == ("failed", 0)

    async def test_a_retry_needs_its_key(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader, key="k")
        other = await submitted(store, key="k")
        [result] = await store.retry([run.id])
        assert (result.outcome, result.id) == ("duplicate", other.id)
        await leader.end(other.seq, "cancelled", "queued")
        await store.retry([run.id])
        assert (await submitted(store, key="k")).id == run.id

    async def test_an_unknown_run(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader)
        with pytest.raises(NotFound):
            await store.retry([run.id, "nobody"])
        row = await store.run(run.id)
        assert row is not None
        assert row.state == "failed"
