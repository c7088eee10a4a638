# ruff: noqa: S101
"""Runs that wait for their time: stored, counted, woken, ended."""

from __future__ import annotations

import pytest

from locktender.base.changes import KeptPlace, TaskRow
from locktender.base.clock import SECOND
from locktender.base.commits import RunEnd, RunEvents, RunStart, RunWait
from locktender.base.errors import NotLeader
from locktender.base.events import Change
from locktender.base.ids import task_id
from locktender.base.limits import TagRule
from locktender.store.admission import MAX_WAITING, WAITING
from locktender.store.protocol import HoldRuns, ReassignLanes, Store, Wake, Woken
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    changes_of,
    history,
    new_run,
    set_ceiling,
    set_rule,
    set_tag,
    submit,
    submitted,
)

HOUR = 3_600 * SECOND


async def _wake(leader: SceneLeader, limit: int = 1_000) -> Woken:
    leader.cycle += 1
    return await leader.store.wake(Wake(leader.term, leader.cycle, leader.actor, limit))


async def _let_wait(leader: SceneLeader, run: int, wake_at: int) -> None:
    change = Change("run", 0, "running", "waiting", 0, {"wake_at": wake_at})
    await leader.commit(runs_waiting=[RunWait(run, wake_at)], events=[RunEvents(run, [change])])


async def _cancel(leader: SceneLeader, run: int) -> None:
    await leader.commit(
        runs_ended=[RunEnd(run, "cancelled", None, None, await leader.store.now())],
        ended_waiting=[run],
        events=[RunEvents(run, [Change("run", 0, "waiting", "cancelled")])],
    )


async def _in_line(store: Store) -> list[int]:
    return [entry.run.seq for entry in await store.queue(100)]


class TestWaiting:
    async def test_tasks_of_several_runs_are_read_at_once(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        runs = await submit(store, new_run(), new_run(), new_run())
        rows = [TaskRow(task_id(run.seq, n), 0, n, "requested", 0) for run in runs for n in (0, 1)]
        await leader.commit(tasks_new=rows)
        first, _, third = (run.seq for run in runs)
        found = await store.tasks_of([third, first, 99])
        assert [row.id for row in found] == [rows[0].id, rows[1].id, rows[4].id, rows[5].id]
        assert found[:2] == await store.tasks(first)
        assert await store.tasks_of([]) == []

    async def test_a_delayed_run_is_rows_only(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        now = world.clock.now()
        [run] = await submit(store, new_run(delay_us=HOUR, tags={"team": "a"}))
        row = await store.run(run.id)
        assert row is not None
        assert (row.state, row.queued_at) == ("waiting", now)
        assert await _in_line(store) == []
        assert (await store.load()).lanes == []
        assert await store.next_wake() == now + HOUR
        assert await store.wake_times([run.seq, 99]) == {run.seq: now + HOUR}
        [told] = await history(store, run.seq)
        assert (told.before, told.after, told.data["wake_at"]) == ("new", "waiting", now + HOUR)
        counts = await store.counts()
        assert (counts.queued, counts.waiting, counts.active[""]) == (0, 1, 0)
        assert counts.admitted[WAITING] - counts.closed.get(WAITING, 0) == 1
        assert (await _wake(leader)).runs == []

    async def test_a_woken_run_has_its_first_age_and_priority(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        first = await submitted(store, delay_us=HOUR, tags={"team": "a"})
        world.clock.advance(60 * SECOND)
        later = await submitted(store, tags={"team": "a"})
        urgent = await submitted(store, tags={"team": "a"}, priority=1)
        world.clock.advance(HOUR - 60 * SECOND - 1)
        assert (await _wake(leader)).runs == []
        world.clock.advance(1)
        woken = await _wake(leader)
        assert [each.run for each in woken.runs] == [first.seq]
        assert woken.next_at is None
        assert await _in_line(store) == [urgent.seq, first.seq, later.seq]
        assert (await changes_of(store, first.seq))[-1] == ("waiting", "queued")
        counts = await store.counts()
        assert (counts.queued, counts.waiting, counts.active[""]) == (3, 0, 3)
        assert counts.admitted[""] - counts.closed[""] == 3
        assert counts.admitted[WAITING] == counts.closed[WAITING]
        # a repeated call finds nothing more
        assert (await _wake(leader)).runs == []
        await leader.start(first.seq)
        assert (await store.counts()).executing == 1

    async def test_the_earliest_are_woken_first_and_some_at_a_time(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        runs = [await submitted(store, delay_us=(5 - n) * SECOND) for n in range(4)]
        world.clock.advance(10 * SECOND)
        woken = await _wake(leader, limit=3)
        assert {each.run for each in woken.runs} == {each.seq for each in runs[1:]}
        assert woken.next_at is not None
        assert [each.run for each in (await _wake(leader)).runs] == [runs[0].seq]

    async def test_a_start_that_has_passed_is_now(self, world: StoreScene) -> None:
        store = await world.open()
        now = world.clock.now()
        gone = await submitted(store, start_at=now - SECOND)
        to_come = await submitted(store, start_at=now + SECOND)
        assert await _in_line(store) == [gone.seq]
        assert await store.wake_times([gone.seq, to_come.seq]) == {to_come.seq: now + SECOND}

    async def test_waiting_runs_have_a_ceiling_of_their_own(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await set_ceiling(store, 1)
        await set_rule(store, "engine", MAX_WAITING, {"value": 2})
        assert (await submitted(store)).outcome == "created"
        waiting = [await submitted(store, delay_us=HOUR) for _ in range(2)]
        assert [each.outcome for each in waiting] == ["created", "created"]
        refused = await submitted(store, delay_us=HOUR)
        assert (refused.outcome, refused.ceiling, refused.active, refused.limit) == (
            "rejected",
            MAX_WAITING,
            2,
            2,
        )
        both = await submit(store, new_run(delay_us=HOUR), new_run(delay_us=HOUR))
        assert {each.outcome for each in both} == {"rejected"}
        # a woken run counts as active, and no ceiling refuses it
        world.clock.advance(HOUR)
        assert len((await _wake(leader)).runs) == 2
        assert (await submitted(store)).outcome == "rejected"
        assert (await submitted(store, delay_us=HOUR)).outcome == "created"

    async def test_a_waiting_run_that_is_cancelled_frees_its_place(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store, delay_us=HOUR, key="k")
        other = await submitted(store, delay_us=2 * HOUR)
        await _cancel(leader, run.seq)
        row = await store.run(run.id)
        assert row is not None
        assert row.state == "cancelled"
        counts = await store.counts()
        assert (counts.waiting, counts.active[""]) == (1, 0)
        assert counts.admitted[WAITING] - counts.closed[WAITING] == 1
        assert counts.admitted[""] == counts.closed[""] == 0
        assert (await submitted(store, key="k")).outcome == "created"
        world.clock.advance(3 * HOUR)
        assert [each.run for each in (await _wake(leader)).runs] == [other.seq]
        # cancelled while it waited, it can be retried
        [again] = await store.retry([run.id])
        assert again.outcome == "duplicate"

    async def test_a_waiting_run_has_its_key(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store, delay_us=HOUR, key="k")
        same = await submitted(store, key="k")
        assert (same.outcome, same.id) == ("attached", run.id)
        # a delayed replacement waits for the run that it replaces, too
        newer = await submitted(store, delay_us=HOUR, key="k", on_duplicate="replace")
        await _cancel(leader, run.seq)
        world.clock.advance(HOUR)
        assert [each.run for each in (await _wake(leader)).runs] == [newer.seq]
        row = await store.run(newer.id)
        assert row is not None
        assert (row.state, row.waits_for) == ("queued", None)

    async def test_limits_that_changed_meanwhile_decide_its_lane(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store, delay_us=HOUR, tags={"team": "a"})
        await set_rule(store, "tag", "team=a", {"key": "team", "value": "a", "limit": 1})
        plain = await submitted(store, tags={"team": "a"})
        world.clock.advance(HOUR)
        [woken] = (await _wake(leader)).runs
        assert woken.run == run.seq
        row = await store.run(plain.id)
        assert row is not None
        assert woken.lane == row.lane
        assert await store.reassign_lanes(ReassignLanes(leader.term)) == 0
        assert await _in_line(store) == [run.seq, plain.seq]

    async def test_a_run_that_only_sleeps_waits_and_goes_on(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await set_rule(store, "tag", "team", {"key": "team", "max_active": 5})
        run = await submitted(store, tags={"team": "a"}, key="k")
        younger = await submitted(store)
        started = world.clock.now()
        await leader.start(run.seq)
        world.clock.advance(SECOND)
        await _let_wait(leader, run.seq, started + HOUR)
        row = await store.run(run.id)
        assert row is not None
        assert (row.state, row.started_at) == ("waiting", started)
        counts = await store.counts()
        assert (counts.waiting, counts.executing, counts.active[""], counts.active["team"]) == (
            1,
            0,
            1,
            0,
        )
        assert counts.admitted["team"] == counts.closed["team"]
        assert (await store.load()).runs == []
        assert await store.next_wake() == started + HOUR
        assert (await submitted(store, key="k")).outcome == "attached"
        world.clock.advance(HOUR)
        assert [each.run for each in (await _wake(leader)).runs] == [run.seq]
        assert await _in_line(store) == [run.seq, younger.seq]
        [woken] = await store.arrivals([run.seq])
        assert (woken.state, woken.started_at) == ("queued", started)
        counts = await store.counts()
        assert (counts.waiting, counts.active[""], counts.active["team"]) == (0, 2, 1)
        await leader.commit(
            runs_started=[RunStart(run.seq, started)],
            events=[RunEvents(run.seq, [Change("run", 0, "queued", "running")])],
        )
        await leader.end(run.seq)
        counts = await store.counts()
        for name in ("", "team", WAITING):
            open_runs = counts.admitted[name] - counts.closed.get(name, 0)
            assert open_runs == counts.active.get(name, 0), name

    async def test_a_run_that_starts_with_a_sleep_and_is_ended(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        now = world.clock.now()
        await leader.commit(
            runs_started=[RunStart(run.seq, now)],
            runs_waiting=[RunWait(run.seq, now + HOUR)],
            events=[
                RunEvents(
                    run.seq,
                    [
                        Change("run", 0, "queued", "running"),
                        Change("run", 0, "running", "waiting", 0, {"wake_at": now + HOUR}),
                    ],
                )
            ],
        )
        assert (await store.counts()).waiting == 1
        assert await _in_line(store) == []
        # taken up to be ended, without a place
        await leader.commit(
            runs_started=[RunStart(run.seq, now)],
            taken_up=[run.seq],
            unplaced=[run.seq],
            events=[RunEvents(run.seq, [Change("run", 0, "waiting", "running")])],
        )
        counts = await store.counts()
        assert (counts.waiting, counts.executing, counts.active[""]) == (0, 1, 1)
        assert (await store.load()).unplaced == [run.seq]
        assert await store.next_wake() is None
        await leader.end(run.seq, "cancelled")
        counts = await store.counts()
        assert counts.admitted[""] == counts.closed[""]
        assert counts.admitted[WAITING] == counts.closed[WAITING]

    async def test_a_waiting_run_that_is_held_counts_as_active(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store, delay_us=HOUR)
        await store.hold_runs(HoldRuns(leader.term, 5, leader.actor, {run.seq: "broken"}))
        assert (await changes_of(store, run.seq))[-1] == ("waiting", "held")
        counts = await store.counts()
        assert (counts.waiting, counts.active[""]) == (0, 1)
        assert counts.admitted[""] - counts.closed[""] == 1
        assert counts.admitted[WAITING] == counts.closed[WAITING]
        assert await store.next_wake() is None

    async def test_a_waiting_run_keeps_its_place_at_a_limit(self, world: StoreScene) -> None:
        store = await world.open()
        rule = TagRule("team", per_value=True, limit=1, counts_while_waiting=True)
        await set_tag(store, rule)
        await set_tag(store, TagRule("team", limit=5))
        leader = await SceneLeader.stand(store)
        run, rival = [await submitted(store, tags={"team": "a"}) for _ in range(2)]
        now = world.clock.now()
        waits = Change("run", 0, "running", "waiting", 0, {"wake_at": now + HOUR})
        await leader.commit(
            runs_started=[RunStart(run.seq, now)],
            runs_waiting=[RunWait(run.seq, now + HOUR)],
            kept=[(run.seq, ("team=*",))],
            events=[RunEvents(run.seq, [Change("run", 0, "queued", "running"), waits])],
        )

        async def kept() -> list[KeptPlace]:
            found = (await store.load()).kept
            assert (view := await store.beside(rival.seq, 10)) is not None
            assert view.kept == found
            return found

        place = KeptPlace(run.seq, run.id, {"team": "a"}, ("team=*",), now)
        assert await kept() == [place]
        world.clock.advance(HOUR)
        await _wake(leader)
        # Queued again, in a lane that does not wait for that limit.
        assert await kept() == [place]
        rows = {row.seq: row.lane for row in await store.arrivals([run.seq, rival.seq])}
        assert rows[run.seq] != rows[rival.seq]
        lane = (await store.load()).lanes
        assert sorted(rows.values()) == sorted(lane)
        # Who counts waiting runs no more makes it wait there again; and the other way round.
        await set_tag(store, TagRule("team", per_value=True, limit=1))
        assert await store.reassign_lanes(ReassignLanes(leader.term, 0)) == 0
        rows = {row.seq: row.lane for row in await store.arrivals([run.seq, rival.seq])}
        assert rows[run.seq] == rows[rival.seq]
        await set_tag(store, rule)
        assert await store.reassign_lanes(ReassignLanes(leader.term, 0)) == 0
        rows = {row.seq: row.lane for row in await store.arrivals([run.seq, rival.seq])}
        assert rows[run.seq] != rows[rival.seq]
        started = Change("run", 0, "queued", "running")
        await leader.commit(
            runs_started=[RunStart(run.seq, now)],
            placed=[run.seq],
            events=[RunEvents(run.seq, [started])],
        )
        assert await kept() == []
        # Without a place, and then ended: the next leader knows nothing of it.
        await leader.commit(kept=[(run.seq, ("team=*",))])
        await leader.commit(unplaced=[run.seq])
        assert await kept() == [place]
        assert (await store.load()).unplaced == [run.seq]
        await leader.end(run.seq)
        assert await kept() == []

    async def test_only_the_leader_wakes(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await submitted(store, delay_us=SECOND)
        world.clock.advance(2 * SECOND)
        leader.term -= 1
        with pytest.raises(NotLeader):
            await _wake(leader)
        assert await _in_line(store) == []

    async def test_a_submission_repeated_after_a_lost_answer_waits_once(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        run = new_run(delay_us=HOUR)
        first = await submit(store, run)
        world.clock.advance(SECOND)
        assert await submit(store, run) == first
        assert (await store.counts()).waiting == 1

    async def test_many_delayed_and_plain_runs_of_one_call(self, world: StoreScene) -> None:
        store = await world.open()
        runs = [new_run(delay_us=HOUR if n % 2 else None) for n in range(1_500)]
        answers = await submit(store, *runs)
        assert {each.outcome for each in answers} == {"created"}
        counts = await store.counts()
        assert (counts.queued, counts.waiting) == (750, 750)
        assert (counts.admitted[""], counts.admitted[WAITING]) == (750, 750)
