# ruff: noqa: S101
"""Runs submitted by name and by schedules: announced flows, traced graphs, ticks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from locktender.base.announced import AnnouncedFlow
from locktender.base.clock import SECOND
from locktender.base.commits import RunEnd, RunUnfolded
from locktender.base.errors import NotLeader
from locktender.base.model import NewRun
from locktender.base.schedules import ScheduleRow, ScheduleSpec, ScheduleState
from locktender.store.protocol import SetSchedule, Store, TickMove
from locktender.store.schedule_rows import KEPT_CHANGES
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    history,
    new_run,
    set_ceiling,
    submitted,
)

BODY = b'{"flow":"f","nodes":[],"version":1}'


class TestNaming:
    async def test_what_was_announced_last_counts(self, world: StoreScene) -> None:
        store = await world.open()
        old, new = AnnouncedFlow("b", "1"), AnnouncedFlow("b", "2", parameters={"type": "object"})
        await store.announce([AnnouncedFlow("a", "1", tags={"t": "x"}), old])
        await store.announce([new])
        await store.announce([new])
        await store.announce([])
        assert await store.flows() == [AnnouncedFlow("a", "1", tags={"t": "x"}), new]
        other = await world.open()
        assert await other.flows(["b", "c"]) == [new]
        assert await other.forget_flow("b") is True
        assert await other.forget_flow("b") is False
        assert [flow.name for flow in await store.flows()] == ["a"]

    async def test_a_traced_run_has_its_graph_with_one_commit(self, world: StoreScene) -> None:
        store = await world.open()
        first, second = await submitted(store), await submitted(store)
        leader = await SceneLeader.stand(store)
        await leader.start(first.seq, second.seq)
        traced = RunUnfolded(first.seq, "digest", BODY, b"[1]")
        # One whose graph is empty ends with the same commit; both share a graph.
        await leader.commit(
            runs_unfolded=[RunUnfolded(second.seq, "digest", BODY, b"[]"), traced],
            runs_ended=[RunEnd(second.seq, "succeeded", b"null", None, 1)],
        )
        row = await store.run(first.id)
        assert row is not None
        assert (row.graph, row.consts, row.state) == ("digest", b"[1]", "running")
        assert await store.graph("digest") == BODY
        ended = await store.run(second.id)
        assert ended is not None
        assert (ended.graph, ended.consts, ended.state) == ("digest", b"[]", "succeeded")

    async def test_a_leader_whose_term_is_over_gives_no_graph(self, world: StoreScene) -> None:
        store = await world.open()
        run = await submitted(store)
        leader = await SceneLeader.stand(store)
        await leader.start(run.seq)
        await SceneLeader.stand(store, "l1")
        with pytest.raises(NotLeader):
            await leader.commit(runs_unfolded=[RunUnfolded(run.seq, "digest", BODY, b"[1]")])
        row = await store.run(run.id)
        assert row is not None
        assert row.graph != "digest"


def _spec(**options: Any) -> ScheduleSpec:
    given: dict[str, Any] = {"every_us": SECOND, **options}
    return ScheduleSpec("f", **given)


async def _set(store: Store, name: str = "s", what: Any = "set", **options: Any) -> ScheduleRow:
    spec = None if what in ("paused", "resumed", "reset") else _spec(**options)
    who = "code" if what == "declared" else "me"
    made = await store.set_schedule(SetSchedule(name, what, who, spec))
    assert made is not None
    return made


def _move(row: ScheduleRow, run: NewRun | None, tick: int = 7, **changes: Any) -> TickMove:
    state = ScheduleState(anchor=row.state.anchor, last=tick)
    given: dict[str, Any] = {"runs": [] if run is None else [(tick, run)], "graphs": {"g": BODY}}
    return TickMove(row.name, row.version, state, 99, **{**given, **changes})


def _of_tick(key: str) -> NewRun:
    return msgspec.structs.replace(new_run(key=key), graph="g", scheduled=("s", 7))


class TestScheduling:
    async def test_an_operators_setting_stands_above_the_declared_one(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        declared = await _set(store, what="declared")
        assert declared.next_at == world.clock.now() + SECOND
        live = await _set(store, every_us=5 * SECOND)
        assert (live.spec, live.declared) == (_spec(every_us=5 * SECOND), _spec())
        paused = await _set(store, what="paused")
        assert (paused.next_at, paused.paused) == (None, True)
        world.clock.advance(60 * SECOND)
        resumed = await _set(store, what="resumed")
        # What passed meanwhile is not caught up with.
        assert resumed.next_at == world.clock.now() + 5 * SECOND
        back = await _set(store, what="reset")
        assert (back.spec, back.live) == (_spec(), None)
        assert await store.set_schedule(SetSchedule("s", "deleted", "me")) is None
        assert await store.schedules() == []
        history = await store.schedule_history("s", 10)
        assert [each.what for each in history] == [
            *("deleted", "reset", "resumed", "paused", "set", "declared"),
        ]
        assert [each.who for each in history] == [*["me"] * 5, "code"]

    async def test_the_same_declaration_again_changes_nothing(self, world: StoreScene) -> None:
        store = await world.open()
        first = await _set(store, what="declared")
        world.clock.advance(SECOND)
        assert await _set(store, what="declared") == first
        assert len(await store.schedule_history("s", 10)) == 1

    async def test_due_are_those_whose_time_has_come(self, world: StoreScene) -> None:
        store = await world.open()
        await _set(store, "soon")
        await _set(store, "later", every_us=10 * SECOND)
        await _set(store, "never", paused=True)
        assert await store.schedules_due(10) == []
        world.clock.advance(SECOND)
        assert [row.name for row in await store.schedules_due(10)] == ["soon"]
        world.clock.advance(10 * SECOND)
        assert [row.name for row in await store.schedules_due(10)] == ["soon", "later"]
        assert [row.name for row in await store.schedules_due(1)] == ["soon"]

    async def test_a_tick_makes_its_run_and_moves_on_once(self, world: StoreScene) -> None:
        store = await world.open()
        row = await _set(store)
        leader = await SceneLeader.stand(store)
        run = _of_tick("schedule:s:7")
        move = _move(row, run, missed=[(6, "late")])
        await store.tick(leader.term, [move])
        # Repeated after a lost answer, or by a leader that has read the same row.
        await store.tick(leader.term, [move])
        other = _of_tick("schedule:s:7")
        await store.tick(leader.term, [_move(row, other)])
        stored = await store.run(run.id)
        assert stored is not None
        assert stored.state == "queued"
        assert await store.run(other.id) is None
        [after] = await store.schedules(["s"])
        assert (after.next_at, after.state.last) == (99, 7)
        assert [(each.id, each.tick) for each in after.state.runs] == [(run.id, 7)]
        ticks = (await store.ticks(["s"], 10))["s"]
        assert [(each.tick, each.outcome, each.run, each.reason) for each in ticks] == [
            (7, "ran", run.id, ""),
            (6, "missed", None, "late"),
        ]
        [event] = await history(store, stored.seq)
        assert (event.data["schedule"], event.data["tick"]) == ("s", 7)

    async def test_a_tick_at_the_ceiling_is_missed_with_its_reason(self, world: StoreScene) -> None:
        store = await world.open()
        await submitted(store)
        await set_ceiling(store, 1)
        row = await _set(store)
        leader = await SceneLeader.stand(store)
        run = _of_tick("k")
        await store.tick(leader.term, [_move(row, run)])
        assert await store.run(run.id) is None
        [tick] = (await store.ticks(["s"], 10))["s"]
        assert (tick.outcome, tick.run) == ("missed", None)
        assert tick.reason == "refused at the ceiling max_active: 1 of 1 runs were active"
        [after] = await store.schedules(["s"])
        assert after.state.last == 7

    async def test_a_tick_of_an_old_term_changes_nothing(self, world: StoreScene) -> None:
        store = await world.open()
        row = await _set(store)
        leader = await SceneLeader.stand(store)
        await SceneLeader.stand(store, "l1")
        run = _of_tick("k")
        with pytest.raises(NotLeader):
            await store.tick(leader.term, [_move(row, run)])
        assert await store.run(run.id) is None
        assert await store.schedules(["s"]) == [row]

    async def test_the_last_ticks_are_kept(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        row, other = await _set(store), await _set(store, name="t")
        many = [(tick, "why") for tick in range(250)]
        await store.tick(leader.term, [_move(row, None, missed=many)])
        await store.tick(leader.term, [_move(other, None, missed=[(3, "why")])])
        ticks = await store.ticks(["s", "t", "none"], 200)
        assert {name: [each.tick for each in found] for name, found in ticks.items()} == {
            "s": list(range(249, 149, -1)),
            "t": [3],
        }
        last = await store.ticks(["s", "t"], 1)
        assert [[each.tick for each in found] for found in last.values()] == [[249], [3]]

    async def test_one_that_cannot_be_decided_on_is_put_off(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await _set(store, "a", every_us=SECOND)
        await _set(store, "b", every_us=SECOND)
        world.clock.advance(2 * SECOND)
        assert [row.name for row in await store.schedules_due(10)] == ["a", "b"]
        until = world.clock.now() + 60 * SECOND
        with pytest.raises(NotLeader):
            await store.put_off(leader.term - 1, ["a"], until)
        await store.put_off(leader.term, ["a"], until)
        assert [row.name for row in await store.schedules_due(10)] == ["b"]
        [row] = await store.schedules(["a"])
        assert (row.next_at, row.version) == (until, 1)
        await store.put_off(leader.term, ["a"], until + SECOND)  # it is not due: nothing changes
        world.clock.advance(60 * SECOND)
        assert [row.name for row in await store.schedules_due(10)] == ["b", "a"]

    async def test_the_last_changes_are_kept(
        self, world: StoreScene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = await world.open()
        for n in range(KEPT_CHANGES + 5):
            await _set(store, "s", every_us=(n + 1) * SECOND)
        assert len(await store.schedule_history("s", 1_000)) == KEPT_CHANGES
        for module in (f"locktender.store.{name}.named_flows" for name in ("sqlite", "postgres")):
            monkeypatch.setattr(f"{module}.ALL_KEPT_CHANGES", 10)
        await _set(store, "other", every_us=SECOND)
        kept = [*await store.schedule_history("s", 1_000)]
        kept += await store.schedule_history("other", 1_000)
        assert len(kept) == 10
