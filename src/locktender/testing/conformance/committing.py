# ruff: noqa: S101
"""The leader's commit: everything a cycle decided, at once and only once."""

from __future__ import annotations

import msgspec
import pytest

from locktender.base.changes import Bucket, Order, Reservation, TaskRow
from locktender.base.clock import SECOND
from locktender.base.commits import (
    NodeInput,
    RunEvents,
    RunMark,
    RunStart,
    Silence,
    TaskEnd,
    TaskSave,
)
from locktender.base.errors import NotLeader
from locktender.base.events import Change
from locktender.base.ids import run_of, task_id
from locktender.base.model import Request
from locktender.store.protocol import Accept
from locktender.testing.conformance.world import (
    DIGEST,
    SceneLeader,
    StoreScene,
    changes_of,
    history,
    join,
    new_run,
    offered,
    submit,
    submitted,
)


def saved(task: TaskRow, **fields: object) -> TaskSave:
    row = task._replace(**fields)
    return TaskSave(*(getattr(row, name) for name in TaskSave._fields))


class TestCommitting:
    async def test_started_runs_leave_the_queue(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        runs = await submit(store, *(new_run() for _ in range(300)))
        await leader.start(*(run.seq for run in runs[:299]))
        assert [entry.run.seq for entry in await store.queue(10)] == [runs[-1].seq]
        snapshot = await store.load()
        assert [run.seq for run in snapshot.runs] == [run.seq for run in runs[:299]]
        assert {run.state for run in snapshot.runs} == {"running"}
        assert await changes_of(store, runs[0].seq) == [("new", "queued"), ("queued", "running")]

    async def test_a_repeated_commit_changes_nothing(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        commit = leader.plan(
            buckets=[Bucket("api", 1)],
            events=[RunEvents(run.seq, [Change("run", 0, "queued", "running")])],
        )
        first = await store.commit(commit)
        assert (await store.commit(commit)).seq == first.seq
        assert len(await changes_of(store, run.seq)) == 2

    async def test_a_commit_says_the_number_of_its_last_event(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        assert (await leader.commit(buckets=[Bucket("api", 1)])).seq == 0
        told = [RunEvents(run.seq, [Change("run", 0, "queued", "running")])] * 2
        assert (await leader.commit(events=told)).seq == (await history(store))[-1].seq

    async def test_marks_and_ends(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await leader.start(run.seq)
        await leader.commit(runs_marked=[RunMark(run.seq, "cancelling", "cancelled", b'"x"')])
        row = await store.run(run.id)
        assert row is not None
        assert (row.state, row.verdict, row.error) == ("cancelling", "cancelled", b'"x"')
        assert [each.seq for each in (await store.load()).runs] == [run.seq]
        world.clock.advance(5)
        await leader.end(run.seq, "cancelled", "cancelling")
        row = await store.run(run.id)
        assert row is not None
        assert (row.state, row.output, row.ended_at) == ("cancelled", b"1", world.clock.now())
        assert (await store.load()).runs == []

    async def test_of_two_marks_in_one_commit_the_last_counts(self, world: StoreScene) -> None:
        store = await world.open()
        run = await submitted(store)
        leader = await SceneLeader.stand(store)
        await leader.start(run.seq)
        marks = [
            RunMark(run.seq, "running", "failed", b'"first"'),
            RunMark(run.seq, "cancelling", "cancelled", b'"second"'),
        ]
        await leader.commit(runs_marked=marks)
        row = await store.run(run.id)
        assert row is not None
        assert (row.state, row.verdict) == ("cancelling", "cancelled")

    async def test_a_run_is_closed_once(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await leader.start(run.seq)
        await leader.end(run.seq)
        await leader.end(run.seq, "failed")
        row = await store.run(run.id)
        assert row is not None
        assert row.state == "succeeded"
        counts = await store.counts()
        assert (counts.admitted[""], counts.closed[""], counts.active[""]) == (1, 1, 0)

    async def test_a_run_that_ends_in_the_queue_leaves_it(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await leader.end(run.seq, "cancelled", "queued")
        assert await store.queue(10) == []
        assert await store.beside(run.seq, 10) is None

    async def test_a_task_made_started_and_completed_in_one_commit(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = (await submitted(store)).seq
        await leader.start(run)
        task = TaskRow(task_id(run, 0), 0, -1, "requested", input=b"[1]")
        given = leader.token()
        await leader.commit(
            tasks_new=[task],
            tasks_saved=[
                saved(task, state="running", token=given, worker="w1", held=b'{"db":1}', attempt=1)
            ],
            tasks_ended=[TaskEnd(task.id, given, b"42", 9)],
        )
        [row] = await store.tasks(run)
        assert (row.state, row.output, row.ended_at, row.held) == ("completed", b"42", 9, None)
        assert (row.input, row.attempt, row.token) == (b"[1]", 1, given)

    async def test_an_end_with_a_stale_token_changes_nothing(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, [(task, given)] = await offered(store)
        await leader.commit(tasks_ended=[TaskEnd(task, given + 1, b"42", 9)])
        [row] = await store.tasks(run)
        assert row.state == "scheduled"

    async def test_advancing_twice_makes_tasks_once(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = (await submitted(store)).seq
        await leader.start(run)
        tasks = [TaskRow(task_id(run, n), 0, n, "requested", input=b"[]") for n in range(300)]
        await leader.commit(tasks_new=tasks)
        await leader.commit(tasks_saved=[saved(tasks[0], state="cancelled", ended_at=1)])
        await leader.commit(tasks_new=tasks)
        rows = await store.tasks(run)
        assert [row.id for row in rows] == [task.id for task in tasks]
        assert [row.state for row in rows[:2]] == ["cancelled", "requested"]

    @pytest.mark.parametrize("others", ["alike", "one_differs", "one_has_none"])
    async def test_columns_of_many_tasks_are_saved(self, world: StoreScene, others: str) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = (await submitted(store)).seq
        await leader.start(run)
        new = [TaskRow(task_id(run, n), 7, n, "requested", requested_at=5) for n in range(3)]
        hot = TaskSave(0, "failed", 1, 2, 3, 4, 5, "w", b"{}", b"err", 6, 7, 8, 9, 10, 11)
        saves = [hot._replace(id=task.id) for task in new]
        # The last too: what stands first must not stand for the others.
        for odd in (0, 2) if others != "alike" else ():
            if others == "one_differs":
                new[odd] = new[odd]._replace(node=8, state="pending", requested_at=50)
                saves[odd] = TaskSave(
                    *(new[odd].id, "skipped", 20, 21, 22, 23, 24, "x", b"[]", b"no"),
                    *(25, 26, 27, 28, 29, 30),
                )
            else:
                new[odd] = new[odd]._replace(node=0, requested_at=0)
                saves[odd] = TaskSave(
                    *(new[odd].id, "failed", 0, 0, 0, 0, 0, None, None, None),
                    *(0, 0, 0, 0, 0, 0),
                )
        await leader.commit(tasks_new=new)
        assert await store.tasks(run) == new
        await leader.commit(tasks_saved=saves)
        assert [saved(row) for row in await store.tasks(run)] == saves

    async def test_every_hot_column_is_saved(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = (await submitted(store)).seq
        await leader.start(run)
        task = TaskRow(task_id(run, 0), 3, 4, "requested", input=b"in", output=b"out")
        await leader.commit(tasks_new=[task])
        save = TaskSave(task.id, "failed", 1, 2, 3, 4, 5, "w", b"{}", b"err", 6, 7, 8, 9, 10, 2**60)
        await leader.commit(tasks_saved=[save])
        [row] = await store.tasks(run)
        assert row == TaskRow(
            task.id, 3, 4, "failed", 1, 2, 3, 4, 5, "w", b"{}", b"in", b"out", b"err",
            6, 7, 8, 9, 10, 2**60,
        )  # fmt: skip

    async def test_orders_live_as_long_as_there_is_something_to_do(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, [(task, given)] = await offered(store)
        assert await store.orders("w1") == [Order("w1", task, given, "offer")]
        assert await store.orders("w2") == []
        await store.accept(Accept("w1", [(task, given)]))
        stop = Order("w1", task, given, "stop", "cancelled by the user")
        await leader.commit(orders=[stop])
        assert await store.orders("w1") == [stop]
        assert (await store.load()).stops == [stop]
        [row] = await store.tasks(run)
        await leader.commit(tasks_saved=[saved(row, state="abandoned", held=None)])
        assert await store.orders("w1") == []

    async def test_an_offer_goes_with_its_schedule(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, _ = await offered(store)
        [row] = await store.tasks(run)
        await leader.commit(tasks_saved=[saved(row, state="requested", token=0, worker=None)])
        assert await store.orders("w1") == []

    async def test_shared_inputs_rates_reservations_requests(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, [(task, given)] = await offered(store)
        await store.ask([Request("cancel", "a-run", who="me"), Request("drain", "w1")])
        first, second = (await store.load()).requests
        await leader.commit(
            node_inputs=[NodeInput(run, 0, b"{}")],
            buckets=[Bucket("api", 7), Bucket("db", 8)],
            reservations=[Reservation(task, "db", 2), Reservation(task, "api", 1)],
            requests_done=[first.seq],
        )
        snapshot = await store.load()
        assert snapshot.buckets == [Bucket("api", 7), Bucket("db", 8)]
        assert snapshot.reservations == [Reservation(task, "api", 1), Reservation(task, "db", 2)]
        assert snapshot.requests == [second]
        [started] = await store.accept(Accept("w1", [(task, given)]))
        assert started.shared == b"{}"
        # Of what is told twice in one commit, the last counts.
        await leader.commit(buckets=[Bucket("api", 11), Bucket("api", 9)], reservations=[])
        snapshot = await store.load()
        assert snapshot.buckets == [Bucket("api", 9), Bucket("db", 8)]
        assert snapshot.reservations == []

    @pytest.mark.parametrize(
        "differ",
        [
            {},
            {"token": [90, 91, 92]},
            {"token": [90, 95, 91], "idx": [2, 0, 1], "input": [b"1", None, b"3"]},
            {"idx": [-1, -1, -1], "token": [0, 0, 0], "state": ["requested"] * 3},
            {"token": [7, 7, 7], "worker": ["w1", "w1", "w2"]},
            {"node": [0, 1, 1], "held": [None, b"{}", b"{}"], "attempt": [0, 0, 3]},
            {"error": [None, b"{}", None], "not_before": [5, 5, 5], "ended_at": [1, 2, 3]},
        ],
        ids=["alike", "tokens", "order", "plain", "workers", "nodes", "ends"],
    )
    async def test_new_tasks_are_stored_as_they_are_given(
        self, world: StoreScene, differ: dict[str, list[object]]
    ) -> None:
        """However much of them is alike, and is sent once."""
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = (await submitted(store)).seq
        await leader.start(run)
        given = [
            TaskRow(
                task_id(run, 4 + number),
                0,
                number,
                "scheduled",
                offers=1,
                token=7 + number,
                worker="w1",
                held=b"{}",
                input=b"[1]",
                requested_at=5,
                scheduled_at=6,
                eligible_at=6,
            )._replace(**{name: values[number] for name, values in differ.items()})
            for number in range(3)
        ]
        await leader.commit(tasks_new=given[::-1])
        assert await store.tasks(run) == given
        # Advancing a run may be repeated: what is there stays as it is.
        await leader.commit(tasks_new=[each._replace(state="completed") for each in given])
        assert await store.tasks(run) == given

    @pytest.mark.parametrize(
        "wrong",
        [
            {"seq": 99},
            {"id": "06gz88gvhazkygbnmnef7e14r0"},
            {"graph": "other"},
            {"params": b'{"x":"other"}'},
            {"consts": b"[9]"},
            {"tags": {"tenant": "b"}},
            {"priority": 6},
            {"queued_at": 1},
            {"deadline_at": 1},
            {"queue_timeout_us": None},
        ],
        ids=lambda wrong: next(iter(wrong)),
    )
    async def test_a_run_that_was_not_read_is_compared(
        self, world: StoreScene, wrong: dict[str, object]
    ) -> None:
        """Nothing is written where a stored row is not what a notification said of it."""
        store = await world.open()
        leader = await SceneLeader.stand(store)
        given = msgspec.structs.replace(
            new_run(), tags={"tenant": "a"}, priority=5, deadline_us=9 * SECOND, queue_timeout_us=7
        )
        [answer] = await submit(store, given)
        [row] = await store.arrivals([answer.seq])
        start = [RunStart(answer.seq, 5)]
        events = [RunEvents(answer.seq, [Change("run", 0, "queued", "running")])]

        told = msgspec.structs.replace(row, **wrong)
        with pytest.raises(NotLeader):
            await store.commit(leader.plan(runs_started=start, events=events, as_carried=[told]))
        assert len(await changes_of(store, answer.seq)) == 1
        assert await store.arrivals([answer.seq]) == [row]

        await store.commit(leader.plan(runs_started=start, events=events, as_carried=[row]))
        assert await changes_of(store, answer.seq) == [("new", "queued"), ("queued", "running")]
        # It is queued no more, so no notification can be right about it.
        with pytest.raises(NotLeader):
            await store.commit(leader.plan(as_carried=[row], requests_done=[1]))

    async def test_each_accepted_task_is_told_what_its_own_step_shares(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        leader, first, pairs = await offered(store, tasks=3)
        second = (await submitted(store)).seq
        await leader.start(second)
        pairs += await leader.offer(second, ordinals=3)
        large = b'"' + b"x" * 200_000 + b'"'
        await leader.commit(node_inputs=[NodeInput(first, 0, b"[1]"), NodeInput(second, 0, large)])
        started = await store.accept(Accept("w1", pairs))
        assert {(each.task, each.token) for each in started} == set(pairs)
        told = {each.task: (each.shared, each.graph) for each in started}
        assert told == {
            task: (b"[1]" if run_of(task) == first else large, DIGEST) for task, _ in pairs
        }
        ids = {run_of(each.task): each.run_id for each in started}
        assert len(ids) == len(set(ids.values())) == 2

    async def test_f1_who_leaves_offers_unanswered_is_marked(self, world: StoreScene) -> None:
        store = await world.open()
        await join(store, "w1")
        await join(store, "w2")
        leader = await SceneLeader.stand(store)
        await leader.commit(silences=[Silence("w2", 3, 77), Silence("gone", 1, 5)])

        async def marks() -> dict[str, tuple[int, int]]:
            rows = await store.workers()
            return {row.id: (row.unanswered, row.asked_again_at) for row in rows}

        assert await marks() == {"w1": (0, 0), "w2": (3, 77)}
        await join(store, "w2")  # its own beat does not take the mark away
        await leader.commit(silences=[Silence("w1", 1, 9), Silence("w2", 4, 88)])
        assert await marks() == {"w1": (1, 9), "w2": (4, 88)}
        await leader.commit(silences=[])
        assert await marks() == {"w1": (0, 0), "w2": (0, 0)}

    async def test_f2_runs_without_a_place_are_kept(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, _ = await offered(store)
        other = (await submitted(store)).seq
        await leader.start(other)
        await leader.commit(unplaced=[other, run])
        await leader.commit(unplaced=[run])  # told twice, kept once
        assert (await store.load()).unplaced == sorted([run, other])
        await leader.commit(placed=[other], unplaced=[run])
        assert (await store.load()).unplaced == [run]
        await leader.commit(placed=[run, other])
        assert (await store.load()).unplaced == []

    async def test_a_snapshot_is_what_a_new_leader_needs(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, [(task, given)] = await offered(store)
        waiting = await submitted(store, tags={"team": "a"})
        await join(store, "w2")
        snapshot = await store.load()
        assert [row.seq for row in snapshot.runs] == [run]
        assert list(snapshot.graphs) == [snapshot.runs[0].graph]
        assert [(row.id, row.token) for row in snapshot.tasks] == [(task, given)]
        assert {worker.id for worker in snapshot.workers} == {"w1", "w2"}
        row = await store.run(waiting.id)
        assert row is not None
        assert snapshot.lanes == [row.lane]
        assert snapshot.now == world.clock.now()
        assert leader.term == 1
