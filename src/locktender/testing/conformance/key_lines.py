# ruff: noqa: S101
"""Runs of one key that wait for each other, and throttles: what is bounded, dropped and delayed."""

from __future__ import annotations

from locktender.base.clock import SECOND
from locktender.base.model import ThrottleLine
from locktender.store.protocol import RemoveUnused
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    new_run,
    submit,
    submitted,
)


class TestBoundedKeys:
    async def test_the_newest_stay_and_one_is_dropped_each_time(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        first = await submitted(store, key="k", keep="newest", max_queued=2)
        await leader.start(first.seq)
        # One transaction and several decide alike; nobody carries the requests out meanwhile.
        several = [new_run(key="k", keep="newest", max_queued=2) for _ in range(3)]
        runs = await submit(store, *several)
        runs.append(await submitted(store, key="k", keep="newest", max_queued=2))
        assert [each.outcome for each in runs] == ["created"] * 4
        rows = [await store.run(each.id) for each in runs]
        waits = [row.waits_for for row in rows if row is not None]
        assert waits == [first.seq, *(each.seq for each in runs[:-1])]
        requests = (await store.load()).requests
        asked = [each.request for each in requests if each.request is not None]
        assert [(each.kind, each.subject) for each in asked] == [
            ("drop", runs[0].id),
            ("drop", runs[1].id),
        ]
        assert "the newest 2 runs of key 'k' may wait" in asked[0].reason

    async def test_the_oldest_stay_and_the_rest_is_skipped(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        first = await submitted(store, key="k", keep="oldest")
        await leader.start(first.seq)
        second = await submitted(store, key="k", keep="oldest")
        third = await submitted(store, key="k", keep="oldest")
        assert (second.outcome, third.outcome, third.id) == ("created", "finished", second.id)
        assert (await store.load()).requests == []
        assert (await submitted(store, key="other", keep="oldest")).outcome == "created"
        counts = await store.counts()
        assert counts.active[""] == 3


class TestThrottles:
    async def test_no_more_start_in_any_span_than_allowed(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        line, other = ThrottleLine("key k", 2, 60 * SECOND), ThrottleLine("key o", 1, SECOND)
        began = world.clock.now()
        await submit(store, *(new_run(throttle=line) for _ in range(3)), new_run(throttle=other))
        world.clock.advance(SECOND)
        runs = [await submitted(store, throttle=line) for _ in range(2)]
        assert [each.outcome for each in runs] == ["created"] * 2
        assert len(await store.queue(10)) == 3
        found = sorted((await store.wake_times([*range(1, 10)])).values())
        assert found == [began + 60 * SECOND, began + 60 * SECOND, began + 120 * SECOND]
        # What is refused as a whole takes no start, and a repetition takes none again.
        refused = [
            new_run(throttle=line),
            new_run(key="k"),
            new_run(key="k", on_duplicate="reject"),
        ]
        assert {each.outcome for each in await submit(store, *refused)} <= {"rejected", "duplicate"}
        again = new_run(throttle=line)
        await submit(store, again)
        [answer] = await submit(store, again)
        times = await store.wake_times([answer.seq])
        assert times == {answer.seq: began + 120 * SECOND}
        # After a pause the line is empty again, and its row goes.
        world.clock.advance(300 * SECOND)
        await store.remove_unused(RemoveUnused(leader.term))
        assert await store.wake_times([(await submitted(store, throttle=line)).seq]) == {}
