# ruff: noqa: S101
"""The queue: lanes, their heads, the global order, and places that change."""

from __future__ import annotations

import pytest

from locktender.base.changes import Bucket, Order
from locktender.base.clock import SECOND
from locktender.base.commits import RunEnd
from locktender.base.errors import NotLeader
from locktender.base.limits import Fair, PoolRule, TagRule
from locktender.store.protocol import (
    Accept,
    EventFilter,
    Heads,
    HoldRuns,
    OpenRuns,
    QueueLine,
    QueuePlace,
    ReassignLanes,
    RemoveUnused,
    Store,
)
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    join,
    new_run,
    set_ceiling,
    set_rule,
    set_tag,
    submit,
    submitted,
)


async def order(store: Store) -> list[str]:
    return [str(entry.run.id) for entry in await store.queue(1_000)]


async def _line(store: Store, run: int, most: int) -> QueueLine:
    view = await store.beside(run, most)
    assert view is not None
    return view.line


class TestQueueing:
    async def test_open_runs_are_counted_by_state(self, world: StoreScene) -> None:
        store = await world.open()
        nothing = await store.open_runs()
        assert nothing == OpenRuns(0, 0, 0, 0, 0, 0)
        await set_ceiling(store, 4)
        leader = await SceneLeader.stand(store)
        started, held = await submitted(store), await submitted(store)
        await leader.start(started.seq)
        await store.hold_runs(HoldRuns(leader.term, 9, leader.actor, {held.seq: "broken"}))
        world.clock.advance(SECOND)
        oldest_at = world.clock.now()
        await submitted(store, priority=-5)
        world.clock.advance(SECOND)
        await submitted(store, priority=7)
        assert (await submitted(store)).outcome == "rejected"
        assert await store.open_runs() == OpenRuns(2, 1, 1, 0, 4, oldest_at)
        assert store.rejections.by_rule == {"max_active": 1}

    async def test_priority_then_age(self, world: StoreScene) -> None:
        store = await world.open()
        ids: list[str] = []
        for priority in (0, 5, -3, 5):
            ids.append((await submitted(store, priority=priority)).id)
            world.clock.advance(1)
        assert await order(store) == [ids[1], ids[3], ids[0], ids[2]]
        assert [entry.position for entry in await store.queue(3)] == [1, 2, 3]
        assert len(await store.queue(3)) == 3

    async def test_the_queue_is_read_on_behind_any_of_its_runs(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        for priority in (0, 5, 0, 5, -1):
            await submitted(store, priority=priority)
        whole = await store.queue(10)
        first = await store.queue(2)
        await leader.start(first[-1].run.seq)  # it leaves the queue between two pages
        assert first + await store.queue(10, after=QueuePlace(first[-1].run.seq, 2)) == whole
        assert await store.queue(10, after=QueuePlace(whole[-1].run.seq, 5)) == []

    async def test_traffic_has_the_longest_lanes_and_the_newest_runs(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        await set_tag(store, TagRule("tenant", limit=1, per_value=True))
        leader = await SceneLeader.stand(store)
        for tenant in ("a", "b", "b"):
            await submitted(store, tags={"tenant": tenant})
        started = await submitted(store)
        await leader.start(started.seq)
        found = await store.traffic(2, 3)
        assert [waiting for _, waiting in found.by_lane] == [2, 1]
        assert [each.state for each in found.lately] == ["running", "queued", "queued"]
        assert found.lately[0].started_at
        assert not found.lately[0].ended_at
        assert (found.read, found.oldest_at) == (3, min(each.queued_at for each in found.lately))

    async def test_traffic_leaves_out_runs_without_recent_events(self, world: StoreScene) -> None:
        store = await world.open()
        nothing = await store.traffic(0, 10)
        assert (nothing.lately, nothing.read, nothing.oldest_at) == ([], 0, 0)
        leader = await SceneLeader.stand(store)
        runs = [await submitted(store) for _ in range(3)]
        await leader.start(runs[0].seq)
        oldest = (await store.traffic(0, 10)).lately[-1]
        found = await store.traffic(0, 10, -SECOND, 3600 * SECOND)
        assert (found.by_lane, found.lately) == ([], [oldest])
        assert (oldest.state, found.read, found.oldest_at) == ("running", 3, oldest.queued_at)
        assert len((await store.traffic(0, 10, 3600 * SECOND, -SECOND)).lately) == 3
        assert (await store.traffic(0, 2, -SECOND, 3600 * SECOND)).lately == []

    @pytest.mark.parametrize("fair", [True, False])
    async def test_a_line_counts_waiting_runs_by_lane_and_priority(
        self, world: StoreScene, fair: bool
    ) -> None:
        store = await world.open()
        await set_tag(store, TagRule("team", per_value=True, limit=1))
        if fair:
            await set_rule(store, "fair", "team", Fair("team"))
        urgent = [new_run(tags={"team": "0"}, priority=9) for _ in range(2)]
        runs = await submit(store, *(new_run(tags={"team": str(n % 3)}) for n in range(9)), *urgent)
        turn = "f:{}\x1f" if fair else ""
        lanes = [f"{turn.format(n)}t:team=*{n}" for n in range(3)]
        for number, run in enumerate(runs[:9]):
            line = await _line(store, run.seq, 100)
            assert (line.rank, line.cut) == (0, False)
            assert (line.ahead, line.more) == (None if fair else number + 2, False)
            level = {each.lane: each for each in line.groups if each.rank == 0}
            # Runs that take turns with it count, also behind it.
            waiting = {lane: each.waiting for lane, each in level.items()}
            assert not fair or waiting == dict.fromkeys(lanes, 3)
            assert level.keys() <= set(lanes)
            assert sum(each.older for each in level.values()) == number
            [higher] = [each for each in line.groups if each.rank < 0]
            assert (higher.lane, higher.rank, higher.waiting) == (lanes[0], -9, 2)
        # Of lower priority nobody is counted.
        line = await _line(store, runs[-1].seq, 100)
        assert [each.older for each in line.groups] == [1]
        assert await store.beside(10**9, 100) is None

    async def test_a_line_of_too_many_lanes_is_cut_behind_its_own_lane(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        await set_rule(store, "fair", "team", Fair("team"))
        runs = await submit(
            store, *(new_run(tags={"team": "a" if n < 20 else "b"}) for n in range(25))
        )
        line = await _line(store, runs[-1].seq, 10)
        assert line.cut
        counted = {each.lane: each.waiting for each in line.groups}
        assert counted == {"f:a": 10, "f:b": 5}

    async def test_a_place_is_counted_from_the_nearer_end_of_the_queue(
        self, world: StoreScene
    ) -> None:
        # Given one run that executes, one that has ended, holds at both ends, and forty that wait
        store = await world.open()
        await set_tag(store, TagRule("team", per_value=True, limit=1))
        leader = await SceneLeader.stand(store)
        gone = await submit(store, new_run(), new_run())
        await leader.start(gone[0].seq, gone[1].seq)
        await leader.commit(runs_ended=[RunEnd(gone[0].seq, "succeeded", b"1", None, 1)])
        hold = new_run(kind="hold")
        _, *runs = await submit(
            store, hold, *(new_run(tags={"team": "ab"[n % 2]}) for n in range(40))
        )
        await submit(store, new_run(kind="hold"))
        # Then both ends know their places, the middle a bound
        for number, run in enumerate(runs):
            line = await _line(store, run.seq, 10)
            near = number < 10 or number > 29
            assert (line.ahead, line.more) == (number if near else min(number, 11), not near)
            assert line.cut == (number > 9)
            if line.cut:
                own = f"t:team=*{'ab'[number % 2]}"
                assert [(each.lane, each.older) for each in line.groups] == [
                    (own, min(10, number // 2))
                ]

    async def test_beside_a_run_are_those_that_hold_places(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await join(store, "w1")
        runs = await submit(store, *(new_run(params={"a": 1}) for _ in range(8)))
        await submit(store, new_run(flow="other"))
        await leader.start(*(run.seq for run in runs[:6]))
        # One ended, one is held with an attempt in flight, one is held without, one gave its place back
        ended, busy, idle, away, plain, late = (run.seq for run in runs[:6])
        world.clock.advance(1_000)
        await leader.commit(runs_ended=[RunEnd(ended, "succeeded", b"1", None, world.clock.now())])
        pairs = await leader.offer(busy, "w1", 1)
        await store.accept(Accept("w1", pairs))
        held = {busy: "broken", idle: "broken too"}
        await store.hold_runs(HoldRuns(leader.term, 7, leader.actor, held))
        await leader.commit(unplaced=[away])
        view = await store.beside(runs[6].seq, 10)
        assert view is not None
        assert [row.seq for row in view.executing] == [busy, away, plain, late]
        assert {row.params for row in view.executing} == {b"{}"}
        assert view.unplaced == [away]
        assert len(view.lasted) == 1
        assert view.now == world.clock.now()

    async def test_the_end_of_the_history_in_its_order(self, world: StoreScene) -> None:
        store = await world.open()
        await submit(store, *(new_run() for _ in range(5)))
        await submit(store, *(new_run() for _ in range(5)))
        every = await store.events(EventFilter())
        assert await store.events(EventFilter(limit=4, newest=True)) == every[-4:]
        assert await store.events(EventFilter(newest=True)) == every

    async def test_heads_are_the_first_of_each_lane(self, world: StoreScene) -> None:
        store = await world.open()
        await set_tag(store, TagRule("team", per_value=True, limit=1))
        runs = await submit(
            store,
            *(new_run(tags={"team": team}, priority=n) for team in "abc" for n in range(5)),
        )
        lanes = (await store.load()).lanes
        assert len(lanes) == 3
        heads = await store.heads(Heads(lanes, each=2))
        found: dict[str, list[int]] = {}
        for row in heads:
            found.setdefault(row.tags["team"], []).append(row.priority)
        assert found == {"a": [4, 3], "b": [4, 3], "c": [4, 3]}
        assert {row.seq for row in heads} < {run.seq for run in runs}

    async def test_when_not_all_heads_fit_every_lane_still_has_its_first(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        await set_tag(store, TagRule("team", per_value=True, limit=1))
        await submit(store, *(new_run(tags={"team": team}) for team in "abc" for _ in range(5)))
        lanes = (await store.load()).lanes
        heads = await store.heads(Heads(lanes, each=3, most=4))
        assert len(heads) == 4
        assert {row.tags["team"] for row in heads} == {"a", "b", "c"}
        assert len(await store.heads(Heads(lanes[:1], each=100))) == 5
        assert await store.heads(Heads([], each=1)) == []

    async def test_reprioritising_moves_a_run(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        runs = await submit(store, *(new_run() for _ in range(3)))
        await leader.commit(reprioritised=[(runs[2].seq, 9)])
        assert await order(store) == [runs[2].id, runs[0].id, runs[1].id]
        row = await store.run(runs[2].id)
        assert row is not None
        assert row.priority == 9
        [head] = await store.heads(Heads([row.lane], each=1))
        assert head.seq == runs[2].seq

    async def test_a_run_that_started_keeps_out_of_the_queue(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await leader.start(run.seq)
        await leader.commit(reprioritised=[(run.seq, 9)])
        assert await order(store) == []

    async def test_reassigned_lanes_are_those_of_the_new_limits(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        runs = await submit(store, *(new_run(tags={"team": str(n % 3)}) for n in range(25)))
        assert len((await store.load()).lanes) == 1
        await set_tag(store, TagRule("team", per_value=True, limit=1))
        after, rounds = 0, 0
        while True:
            after = await store.reassign_lanes(ReassignLanes(leader.term, after, batch=10))
            rounds += 1
            if not after:
                break
        assert rounds == 3
        assert len((await store.load()).lanes) == 3
        assert await order(store) == [run.id for run in runs]

    async def test_lanes_that_nobody_stands_in_are_tidied_away(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await set_tag(store, TagRule("team", per_value=True, limit=1))
        runs = await submit(store, *(new_run(tags={"team": str(n)}) for n in range(25)))
        await leader.start(*(run.seq for run in runs[:-1]))
        after, rounds = 0, 0
        while True:
            after = await store.remove_unused(RemoveUnused(leader.term, after, batch=10))
            rounds += 1
            if not after:
                break
        assert rounds == 3
        # One that is stood in keeps its place; one that is gone is made again.
        kept = await store.run(runs[-1].id)
        [again, beside] = await submit(
            store, new_run(tags={"team": "0"}), new_run(tags={"team": "24"})
        )
        made, joined = await store.run(again.id), await store.run(beside.id)
        assert kept is not None
        assert made is not None
        assert joined is not None
        assert joined.lane == kept.lane
        assert made.lane > kept.lane
        assert await order(store) == [runs[-1].id, again.id, beside.id]
        assert {row.seq for row in await store.heads(Heads((await store.load()).lanes, 1))} == {
            runs[-1].seq,
            again.seq,
        }

    async def test_the_state_of_a_rate_is_tidied_away_when_it_says_nothing(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        now = world.clock.now()
        await leader.commit(buckets=[Bucket("soon", now + 5), Bucket("later", now + 50)])
        assert await store.remove_unused(RemoveUnused(leader.term)) == 0
        assert len((await store.load()).buckets) == 2
        world.clock.advance(10)
        assert await store.remove_unused(RemoveUnused(leader.term)) == 0
        assert [bucket.pool for bucket in (await store.load()).buckets] == ["later"]

    async def test_drain_orders_of_workers_that_are_gone_are_removed(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await join(store, "w1")
        await join(store, "w2")
        drained = [Order("w1", -1, 0, "drain"), Order("w2", -2, 0, "drain")]
        await leader.commit(orders=[*drained, Order("w2", -3, 0, "undrain")])
        await store.leave("w1")

        assert await store.remove_unused(RemoveUnused(leader.term)) == 0

        assert await store.orders("w1") == []
        # The newest order of a worker that is there says how it stands.
        assert [order.kind for order in await store.orders("w2")] == ["undrain"]

    async def test_counters_without_active_runs_are_tidied_away(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await set_tag(store, TagRule("team", per_value=True, max_active=1))
        first, second = await submit(store, *(new_run(tags={"team": each}) for each in "ab"))
        await leader.start(first.seq)
        await leader.end(first.seq)
        assert set((await store.counts()).admitted) == {"", "team=*a", "team=*b"}

        assert await store.remove_unused(RemoveUnused(leader.term)) == 0

        assert set((await store.counts()).admitted) == {"", "team=*b"}
        # It counts from nothing again, and the ceiling holds as before.
        [again] = await submit(store, new_run(tags={"team": "a"}))
        [refused] = await submit(store, new_run(tags={"team": "a"}))
        assert (refused.outcome, refused.ceiling) == ("rejected", "team=a")
        counts = await store.counts()
        active = {name: n - counts.closed.get(name, 0) for name, n in counts.admitted.items()}
        assert active == {"": 2, "team=*a": 1, "team=*b": 1}
        await leader.start(again.seq, second.seq)
        await leader.end(again.seq)
        await leader.end(second.seq)
        assert await store.remove_unused(RemoveUnused(leader.term)) == 0
        assert set((await store.counts()).admitted) == {""}

    async def test_old_changes_of_limits_are_tidied_away(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        for limit in (1, 2, 3):
            await set_rule(store, "pool", "db", PoolRule(limit))
            world.clock.advance(10)
        await set_rule(store, "pool", "api", PoolRule(7))
        old = world.clock.now() + 1
        world.clock.advance(10)
        await set_rule(store, "pool", "api", PoolRule(8))
        assert await store.remove_unused(RemoveUnused(leader.term)) == 0
        assert len(await store.limit_history(100)) == 5

        assert await store.remove_unused(RemoveUnused(leader.term, before=old)) == 0

        # The last one of each limit stays, however old: it says who set what holds.
        assert {each.name for each in await store.limit_history(100)} == {"db", "api"}
        assert len(await store.limit_history(100)) == 2
        assert (await store.limits())[0].pools == {"db": PoolRule(3), "api": PoolRule(8)}

    async def test_only_the_leader_tidies(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        with pytest.raises(NotLeader):
            await store.remove_unused(RemoveUnused(leader.term + 1))

    async def test_reassigned_lanes_have_the_rank_of_an_age_boost(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        old = await submitted(store, priority=0)
        world.clock.advance(1_000)
        new = await submitted(store, priority=1)
        assert await order(store) == [new.id, old.id]
        await set_rule(store, "engine", "age_boost_us", {"value": 100})
        assert await store.reassign_lanes(ReassignLanes(leader.term)) == 0
        assert await order(store) == [old.id, new.id]

    async def test_a_hold_never_stands_behind_a_flow(self, world: StoreScene) -> None:
        """The run gate does not concern it, so a blocked flow must not hide it."""
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await set_tag(store, TagRule("hold", limit=1))
        await submit(store, *(new_run(tags={"hold": "x"}) for _ in range(5)))
        hold = await submitted(store, kind="hold", tags={"hold": "x"})
        for _ in range(2):
            heads = await store.heads(Heads((await store.load()).lanes, each=1))
            assert hold.seq in {row.seq for row in heads}
            await store.reassign_lanes(ReassignLanes(leader.term))

    async def test_a_replacement_waits_in_a_lane_of_its_own(self, world: StoreScene) -> None:
        """Its wait for one run must not hold up the runs behind it."""
        store = await world.open()
        first = await submitted(store, key="k")
        waiting = await submitted(store, key="k", on_duplicate="replace")
        rows = [await store.run(each.id) for each in (first, waiting)]
        assert len({row.lane for row in rows if row is not None}) == 2
