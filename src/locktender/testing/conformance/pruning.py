# ruff: noqa: S101
"""Pruning: ended runs and what no run refers to are removed while other verbs run."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import msgspec
import pytest

from locktender.base.changes import Linger, Order, TaskRow
from locktender.base.clock import SECOND
from locktender.base.codec import blob_ref
from locktender.base.commits import NodeInput, RunEvents
from locktender.base.events import HISTORY, NO_RUN, Change
from locktender.base.ids import task_id
from locktender.base.schedules import ScheduleSpec
from locktender.store.protocol import (
    AuditState,
    Discard,
    Discarded,
    EventReader,
    Gather,
    Prune,
    Pruned,
    SendEvent,
    SetSchedule,
    Store,
    Submit,
    Thin,
)
from locktender.store.pruning import BLOB_GRACE_US, sweep
from locktender.testing.conformance.admission import ended
from locktender.testing.conformance.world import (
    DIGEST,
    SceneLeader,
    StoreScene,
    history,
    new_run,
    offered,
    submit,
    submitted,
)

ALL = 2**62
OTHER = b'{"flow":"other","nodes":[]}'


async def numbers(store: Store) -> set[int]:
    return {event.run for event in await history(store) if event.run > 0}


async def prune(store: Store, world: StoreScene, **fields: int) -> Pruned:
    """Everything that has ended by now."""
    wanted: dict[str, Any] = {"before": world.clock.now() + 1, "checked": ALL, **fields}
    return await store.prune(Prune(who="ops", **wanted))


class TestPruning:
    @pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "timed_out"])
    async def test_an_ended_run_goes_with_everything_of_it(
        self, world: StoreScene, state: str
    ) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        stays = await submitted(store)
        run = await submitted(store)
        await leader.start(run.seq)
        task = TaskRow(task_id(run.seq, 0), 0, 0, "completed", output=b"7")
        await leader.commit(
            tasks_new=[task],
            node_inputs=[NodeInput(run.seq, 0, b"{}")],
            orders=[Order("w1", task.id, 1, "stop")],
            events=[RunEvents(run.seq, [Change("task", task.id, "new", "requested")])],
        )
        await leader.end(run.seq, state)
        counts = await store.counts()
        assert await prune(store, world) == Pruned(1, 1, 4, 0)
        assert await store.run(run.id) is None
        assert await store.tasks(run.seq) == []
        assert await store.orders("w1") == []
        assert await history(store, run.seq) == []
        assert await store.run(stays.id) is not None
        assert await numbers(store) == {stays.seq}
        assert await store.counts() == counts

    async def test_the_history_says_what_went(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader)
        at = world.clock.now()
        last = (await history(store))[-1].seq
        await prune(store, world, checked=last)
        [event] = await history(store, HISTORY)
        assert (event.subject, event.after, event.actor) == ("audit", "pruned", "client")
        assert event.seq > last
        found = {"runs": 1, "tasks": 0, "events": 3, "until": at, "checked": last, "who": "ops"}
        assert event.data == found
        assert await store.run(run.id) is None

    async def test_what_is_active_stays(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        queued, running = await submit(store, new_run(), new_run())
        await leader.start(running.seq)
        again = await ended(store, leader)
        await store.retry([again.id])
        world.clock.advance(SECOND)
        assert await prune(store, world) == Pruned(0, 0, 0, 0)
        for run in (queued, running, again):
            assert await store.run(run.id) is not None

    async def test_what_ended_at_the_instant_or_later_stays(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await ended(store, leader)
        world.clock.advance(SECOND)
        later = await ended(store, leader)
        instant = world.clock.now()
        assert (await prune(store, world, before=instant)).runs == 1
        assert await numbers(store) == {later.seq}

    async def test_a_retried_run_does_not_hide_those_behind_it(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        first = await ended(store, leader)
        second = await ended(store, leader)
        world.clock.advance(SECOND)
        instant = world.clock.now()
        await store.retry([first.id])
        await submitted(store)
        assert (await prune(store, world, before=instant)).runs == 1
        assert await store.run(first.id) is not None
        assert await store.run(second.id) is None

    async def test_a_run_with_unchecked_events_stays(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        first = await ended(store, leader)
        checked = (await history(store))[-1].seq
        second = await ended(store, leader)
        assert (await prune(store, world, checked=checked)).runs == 1
        assert await numbers(store) == {second.seq}
        assert first.seq != second.seq

    async def test_a_key_in_use_and_who_waits_for_it_stay(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        first = await submitted(store, key="k")
        await leader.start(first.seq)
        second = await submitted(store, key="k", on_duplicate="replace", params={"n": 2})
        row = await store.run(second.id)
        assert row is not None
        assert row.waits_for == first.seq
        assert await prune(store, world) == Pruned(0, 0, 0, 0)
        await leader.end(first.seq, "cancelled")
        assert (await prune(store, world)).runs == 1
        assert await store.run(second.id) is not None
        assert (await submitted(store, key="k", params={"n": 2})).id == second.id

    async def test_slots_that_a_lease_still_holds_keep_their_run(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await leader.start(run.seq)
        held = Linger(task_id(run.seq, 0), 1, "db", 1, world.clock.now() + SECOND, "w1")
        await leader.commit(lingers=[held])
        await leader.end(run.seq, "failed")
        assert (await prune(store, world)).runs == 0
        await leader.commit(lingers=[])
        assert (await prune(store, world)).runs == 1

    async def test_batches_go_on_where_the_last_one_ended(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        runs = [(await ended(store, leader)).seq for _ in range(5)]
        after, batches = 0, list[int]()
        while True:
            done = await prune(store, world, after=after, batch=2)
            batches.append(done.runs)
            after = done.after
            if not after:
                break
        assert batches == [2, 2, 1]
        assert await numbers(store) == set()
        assert runs == sorted(runs)

    async def test_the_newest_can_be_kept(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        runs = [(await ended(store, leader)).seq for _ in range(4)]
        assert (await prune(store, world, below=runs[2])).runs == 2
        assert await numbers(store) == set(runs[2:])

    async def test_a_dry_run_changes_nothing(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader)
        before = await history(store)
        assert await prune(store, world, dry_run=True) == Pruned(1, 0, 3, 0)
        assert await store.run(run.id) is not None
        assert await history(store) == before

    async def test_a_pruned_run_is_not_there_to_be_retried(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store)
        runs = [await ended(store, leader) for _ in range(20)]

        async def retry(run_id: str) -> bool:
            try:
                await other.retry([run_id])
            except Exception as error:  # noqa: BLE001
                return type(error).__name__ != "NotFound"
            return True

        retried = asyncio.gather(*(retry(run.id) for run in reversed(runs)))
        pruned, after = 0, 0
        while True:
            done = await prune(store, world, after=after, batch=3)
            pruned += done.runs
            after = done.after
            if not after:
                break
        alive = sum(await retried)
        assert alive + pruned == 20
        queued = {entry.run.seq for entry in await store.queue(100)}
        assert len(queued) == alive
        assert await numbers(store) == queued

    async def test_a_leader_follows_over_what_was_pruned(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await ended(store, leader)
        snapshot = await store.load()
        await prune(store, world)
        run = await submitted(store)
        gathered = await store.gather(Gather(snapshot.cursor, leader.actor))
        assert run.seq in [event.run for event in gathered.events]
        assert (await history(store))[-1].run == run.seq

    async def test_numbers_are_not_given_twice(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader)
        await prune(store, world)
        assert (await submitted(store)).seq > run.seq

    async def test_rows_of_no_run_go_together_or_not_at_all(self, world: StoreScene) -> None:
        store = await world.open()
        said = [Change("audit", 0, "", "pruned", 0, {"n": n}) for n in range(4)]
        seqs = [await store.remark(change) for change in said]
        summed = Change("audit", 0, "", "summed", 0, {"n": 9})
        assert not await store.thin(Thin(HISTORY, [*seqs[:2], ALL], summed))
        assert not await store.thin(Thin(NO_RUN, seqs[:2], summed)), "they are of another kind"
        assert [event.data["n"] for event in await history(store)] == [0, 1, 2, 3]
        done = await asyncio.gather(
            *(store.thin(Thin(HISTORY, seqs[:3], summed)) for _ in range(3))
        )
        assert sorted(done) == [False, False, True]
        assert [event.data["n"] for event in await history(store)] == [3, 9]

    async def test_the_last_state_that_was_kept_is_read(self, world: StoreScene) -> None:
        store = await world.open()
        assert await store.audit_state() is None
        for state in (AuditState(7, 1, "1", 0, b"\0" * 300_000), AuditState(5, 2, "2", 1, b"")):
            await store.keep_audit_state(state)
            await store.keep_audit_state(state)
            assert await (await world.open()).audit_state() == state

    async def test_each_reader_of_the_history_has_a_cursor(self, world: StoreScene) -> None:
        store = await world.open()
        assert await store.event_readers() == []
        for reader in (
            EventReader("b", "x", 1),
            EventReader("a", "y", 2),
            EventReader("b", "z", 3),
        ):
            await store.keep_event_reader(reader)
        kept = await (await world.open()).event_readers()
        assert kept == [EventReader("a", "y", 2), EventReader("b", "z", 3)]
        assert await store.forget_event_reader("a")
        assert not await store.forget_event_reader("a")


class TestSweeping:
    async def test_a_graph_goes_with_the_last_run_that_names_it(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        first, second = await ended(store, leader), await ended(store, leader)
        await prune(store, world, below=second.seq)
        assert await sweep(store, await store.now()) == Discarded(0, 0)
        await prune(store, world)
        assert await sweep(store, await store.now()) == Discarded(1, 0)
        assert await store.run(first.id) is None
        with pytest.raises(Exception, match="graph"):
            await store.graph(DIGEST)
        await submitted(store)
        assert await store.graph(DIGEST)

    async def test_a_graph_that_came_back_meanwhile_stays(self, world: StoreScene) -> None:
        store = await world.open()
        await submitted(store)
        other = hashlib.sha256(OTHER).hexdigest()
        found = await store.references(0, 100)
        assert (found.graphs, found.blobs, found.after) == ({DIGEST}, set(), 0)
        run = msgspec.structs.replace(new_run(), graph=other)
        await store.submit(Submit([run], {other: OTHER}))
        done = await store.discard(Discard(graphs=[other], last_run=found.last))
        assert done == Discarded(0, 0)
        assert await store.graph(other) == OTHER

    async def test_blobs_that_any_row_refers_to_stay(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, _ = await offered(store)
        names = [await store.put_blob(str(n).encode() * 10) for n in range(6)]
        refs = [blob_ref(name, 10) for name in names]
        consts = b"[" + refs[1] + b"]"
        large = msgspec.structs.replace(new_run(), params=refs[0], consts=consts)
        await submit(store, large)
        new = TaskRow(task_id(run, 9), 0, 9, "completed", input=refs[2], output=refs[3])
        await leader.commit(
            tasks_new=[new], node_inputs=[NodeInput(run, 0, b'{"args":[' + refs[4] + b"]}")]
        )
        world.clock.advance(2 * BLOB_GRACE_US)
        assert await sweep(store, await store.now(), page=1) == Discarded(0, 1)
        for name in names[:5]:
            assert await store.get_blob(name)
        with pytest.raises(Exception, match="blob"):
            await store.get_blob(names[5])

    async def test_blobs_that_no_run_refers_to_yet_stay(self, world: StoreScene) -> None:
        """A schedule, as code declared it and as it was set; an event that nobody has taken."""
        store = await world.open()
        names = [await store.put_blob(str(n).encode() * 10) for n in range(4)]
        refs = [msgspec.Raw(blob_ref(name, 10)) for name in names]
        declared, live = (ScheduleSpec("f", every_us=SECOND, args=args) for args in refs[:2])
        await store.set_schedule(SetSchedule("s", "declared", "code", declared))
        await store.set_schedule(SetSchedule("s", "set", "me", live))
        await store.send(SendEvent(None, "topic", "key", bytes(refs[2]), "{}"))
        world.clock.advance(2 * BLOB_GRACE_US)
        assert (await sweep(store, await store.now())).blobs == 1
        for name in names[:3]:
            assert await store.get_blob(name)

    async def test_names_are_swept_a_few_at_a_time(self, world: StoreScene) -> None:
        store = await world.open()
        names = sorted([await store.put_blob(str(n).encode() * 10) for n in range(7)])
        await submit(store, msgspec.structs.replace(new_run(), params=blob_ref(names[3], 10)))
        world.clock.advance(2 * BLOB_GRACE_US)
        before = await store.now()
        seen: list[str] = []
        after, slices = "", 0
        while True:
            kept = await store.stored_content(before, after, 2)
            assert len(kept.blobs) <= 2
            assert len(kept.graphs) <= 2
            seen += sorted(kept.graphs | kept.blobs)
            after, slices = kept.after, slices + 1
            if not after:
                break
        assert seen == sorted([*names, DIGEST])
        assert slices >= 4
        assert await sweep(store, before, names=2) == Discarded(0, 6)
        assert await store.get_blob(names[3])
        assert await store.graph(DIGEST)

    async def test_a_blob_that_was_just_put_stays(self, world: StoreScene) -> None:
        """A blob that was just put will soon be referred to."""
        store = await world.open()
        name = await store.put_blob(b"large")
        world.clock.advance(BLOB_GRACE_US // 2)
        assert await sweep(store, await store.now()) == Discarded(0, 0)
        world.clock.advance(BLOB_GRACE_US)
        assert await store.put_blob(b"large") == name
        assert await sweep(store, await store.now()) == Discarded(0, 0)
        assert await store.get_blob(name) == b"large"
        world.clock.advance(2 * BLOB_GRACE_US)
        assert await sweep(store, await store.now()) == Discarded(0, 1)
        assert await store.put_blob(b"large") == name
        assert await store.get_blob(name) == b"large"
