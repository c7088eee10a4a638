# ruff: noqa: S101
"""A worker's lease, acceptance, ends of attempts, and wake-ups by commits of other processes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import msgspec
import pytest

from locktender.base.changes import End, Order
from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.model import DeadWorker, Failure, LogFilter, LogRow, Progress
from locktender.base.states import TaskState
from locktender.store.protocol import Accept, Expire, Finish, Heads, Heartbeat, Store, TaskFilter
from locktender.testing.conformance.world import (
    LEASE,
    SceneLeader,
    StoreScene,
    changes_of,
    expire_passed,
    history,
    join,
    new_run,
    offered,
    submit,
    submitted,
)


class TestWorking:
    async def test_what_attempts_logged_is_kept_once_and_read_by_pages(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        _, run, pairs = await offered(store, tasks=3)
        rows = [LogRow(task, given, 1, b"lines") for task, given in pairs]
        other = LogRow(pairs[0][0] + (1 << 20), 7, 1, b"of another run")
        later = LogRow(pairs[0][0], pairs[0][1] + 10, 2, b"again")

        await store.keep_logs([*reversed(rows), other, later])
        await store.keep_logs([rows[0]._replace(body=b"changed")])

        expected = [rows[0], later, *rows[1:]]
        assert await store.logs(LogFilter(run)) == expected
        assert await store.logs(LogFilter(run, limit=2)) == expected[:2]
        after = expected[1].task, expected[1].token
        assert await store.logs(LogFilter(run, after=after)) == expected[2:]
        assert await store.logs(LogFilter(run, task=rows[1].task)) == [rows[1]]
        assert await store.logs(LogFilter(run + 2)) == []

        more = rows[1]._replace(body=b"more", lines=3)
        await store.keep_logs([more, rows[2]._replace(lines=1)])
        await store.keep_logs([more._replace(body=b"late", lines=2)])
        assert await store.logs(LogFilter(run, task=rows[1].task)) == [more]
        keys = [(row.task, row.token) for row in expected]
        assert await store.log_counts(run) == dict(zip(keys, (0, 0, 3, 1), strict=True))
        assert await store.log_counts(run, rows[1].task) == {keys[2]: 3}

    async def test_some_tasks_of_a_run_are_read_with_how_many_there_are(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        _, run, pairs = await offered(store, tasks=5)
        (first, given), (second, other), *_ = pairs
        await store.accept(Accept("w1", pairs))
        error = msgspec.json.encode(Failure("ValueError", "no"))
        ends = [End(first, given, "completed", b"1"), End(second, other, "failed", error=error)]
        await store.finish(Finish("w1", ends))
        rows = await store.tasks(run)
        nodes = sorted({row.node for row in rows})

        page = await store.task_page(TaskFilter(run, limit=2))
        assert page.tasks == rows[:2]
        assert sum(each.tasks for each in page.counts) == len(rows)
        assert {each.state: each.tasks for each in page.counts} == Counter(
            row.state for row in rows
        )
        assert (await store.task_page(TaskFilter(run, after=rows[1].id))).tasks == rows[2:]
        assert (await store.task_page(TaskFilter(run, after=rows[-1].id))).tasks == []
        failed = await store.task_page(TaskFilter(run, states=["failed"]))
        assert failed == (page.counts, [row for row in rows if row.state == "failed"])
        assert (await store.task_page(TaskFilter(run, nodes))).tasks == rows
        assert (await store.task_page(TaskFilter(run, [nodes[-1] + 1]))).tasks == []
        assert await store.task_page(TaskFilter(run + 1)) == ([], [])

    async def test_a_beat_carries_progress_and_is_no_news(self, world: StoreScene) -> None:
        store = await world.open()
        await join(store)
        before = len(await history(store))
        said = Progress(7, 3.0, 10.0, "a third ✓")
        await join(store, progress=[said])
        [worker] = await store.workers()
        assert worker.progress == [said]
        assert len(await history(store)) == before

    async def test_the_submitters_trace_reaches_the_worker(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await join(store)
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        [run] = await submit(store, msgspec.structs.replace(new_run(), trace=parent))
        [queued] = await store.heads(Heads((await store.load()).lanes, 1))
        assert queued.trace == parent
        await leader.start(run.seq)
        [executing] = (await store.load()).runs
        assert executing.trace == parent
        pairs = await leader.offer(run.seq)
        for _ in range(2):
            [started] = await store.accept(Accept("w1", pairs))
            assert started.trace == parent

    async def test_a_worker_joins_and_renews(self, world: StoreScene) -> None:
        store = await world.open()
        joined = await join(store, labels={"gpu": "no"})
        assert joined.lease_until == joined.now + LEASE
        since = world.clock.now()
        world.clock.advance(SECOND)
        renewed = await join(store, claim=2, labels={"gpu": "no"})
        assert renewed.lease_until == world.clock.now() + LEASE
        [worker] = await store.workers()
        assert (worker.id, worker.claim, worker.labels) == ("w1", 2, {"gpu": "no"})
        assert (worker.since, worker.lease_until) == (since, renewed.lease_until)
        [event] = await history(store)
        assert (event.subject, event.after, event.data["worker"]) == ("worker", "joined", "w1")
        assert event.data["permits"] == {"async": 10}

    async def test_a_worker_renews_as_long_as_its_row_is_there(self, world: StoreScene) -> None:
        """F6: the clock may have jumped. Only the declaration of its loss ends its membership (E5)."""
        store = await world.open()
        leader, run, pairs = await offered(store)
        world.clock.advance(3 * LEASE)
        renewed = await join(store)
        assert renewed.lease_until == world.clock.now() + LEASE
        world.clock.advance(3 * LEASE)
        assert [each.task for each in await store.accept(Accept("w1", pairs))] == [pairs[0][0]]
        assert (await store.tasks(run))[0].state == "running"
        await expire_passed(store, leader.term, leader.actor)
        assert (await join(store)).lease_until == 0

    async def test_a_renewal_that_comes_late_never_joins(self, world: StoreScene) -> None:
        """After it has left: its row would come back, and be declared lost later."""
        store = await world.open()
        await join(store)
        row = (await store.workers())[0]
        assert (await store.heartbeat(Heartbeat(row, LEASE, renews=True))).lease_until > 0
        await store.leave("w1")
        assert (await store.heartbeat(Heartbeat(row, LEASE, renews=True))).lease_until == 0
        assert await store.workers() == []
        assert [event.after for event in await history(store)] == ["joined", "left"]

    async def test_a_worker_that_renewed_meanwhile_is_not_lost(self, world: StoreScene) -> None:
        store = await world.open()
        leader, _, _ = await offered(store)
        [life] = await store.lives()
        assert (life.worker, life.lease_us) == ("w1", LEASE)
        world.clock.advance(1)
        await join(store)
        dead = [DeadWorker("w1", life.lease_until, "lease expired")]
        assert await store.expire(Expire(leader.term, 2, leader.actor, dead)) == []
        assert [each.id for each in await store.workers()] == ["w1"]

    async def test_a_worker_declared_lost_stays_lost(self, world: StoreScene) -> None:
        store = await world.open()
        leader, _, _ = await offered(store)
        world.clock.advance(LEASE + 1)
        [lost] = await expire_passed(store, leader.term, leader.actor)
        assert lost.worker == "w1"
        assert (await join(store)).lease_until == 0
        assert await store.workers() == []
        assert (await join(store, "w1-again")).lease_until > 0

    async def test_accepting_starts_before_anything_else(self, world: StoreScene) -> None:
        store = await world.open()
        _, run, pairs = await offered(store, tasks=300)
        world.clock.advance(SECOND)
        started = await store.accept(Accept("w1", pairs))
        assert sorted((each.task, each.token) for each in started) == pairs
        assert started[0].graph
        assert await store.orders("w1") == []
        rows = await store.tasks(run)
        for row in rows:
            assert (row.state, row.worker, row.attempt) == ("running", "w1", 1)
            assert row.started_at == world.clock.now()
        told = [(row.id, row.token, row.node, row.idx, row.attempt, row.input) for row in rows]
        assert told == sorted(each[:6] for each in started)
        event = (await history(store, run))[-1]
        assert (event.before, event.after, event.actor, event.data) == (
            "scheduled",
            "running",
            "worker:w1",
            {"worker": "w1"},
        )

    async def test_a_repeated_acceptance_gives_the_same_answer(self, world: StoreScene) -> None:
        store = await world.open()
        _, run, pairs = await offered(store)
        first = await store.accept(Accept("w1", pairs))
        assert await store.accept(Accept("w1", pairs)) == first
        assert [after for _, after in await changes_of(store, run)].count("running") == 2

    async def test_what_is_not_offered_is_not_accepted(self, world: StoreScene) -> None:
        store = await world.open()
        _, run, [(task, given)] = await offered(store)
        await join(store, "w2")
        assert await store.accept(Accept("w2", [(task, given)])) == []
        assert await store.accept(Accept("w1", [(task, given + 1)])) == []
        assert await store.accept(Accept("w1", [(task + 1, given)])) == []
        assert await store.accept(Accept("unknown", [(task, given)])) == []
        [row] = await store.tasks(run)
        assert row.state == "scheduled"
        assert await store.stale_writes() == 4

    async def test_a_worker_that_was_declared_lost_accepts_nothing(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, pairs = await offered(store)
        world.clock.advance(LEASE + 1)
        await expire_passed(store, leader.term, leader.actor)
        assert await store.accept(Accept("w1", pairs)) == []
        [row] = await store.tasks(run)
        assert row.state == "requested"

    @pytest.mark.parametrize(
        "state", ["completed", "failed", "cancelled", "timed_out", "handed_back"]
    )
    async def test_every_end_frees_what_the_task_held(self, world: StoreScene, state: str) -> None:
        """C5."""
        store = await world.open()
        leader, run, [(task, given)] = await offered(store)
        await store.accept(Accept("w1", [(task, given)]))
        await leader.commit(orders=[Order("w1", task, given, "stop")])
        assert (await store.counts()).held == {"db": 1}
        world.clock.advance(SECOND)
        error = msgspec.json.encode(Failure("ValueError", "no", retryable=False))
        ended = End(task, given, state, b"1", error, "because")
        assert await store.finish(Finish("w1", [ended])) == []
        [row] = await store.tasks(run)
        assert (row.state, row.output, row.error, row.held) == (state, b"1", error, None)
        assert (row.ended_at, row.token) == (world.clock.now(), given)
        assert (await store.counts()).held == {}
        assert await store.orders("w1") == []
        event = (await history(store, run))[-1]
        assert (event.before, event.after, event.token, event.actor) == (
            "running",
            state,
            given,
            "worker:w1",
        )
        assert event.data == {
            "error": {"type": "ValueError", "message": "no"},
            "retryable": False,
            "reason": "because",
        }

    async def test_a_repeated_end_is_not_stale_and_not_counted_twice(
        self, world: StoreScene
    ) -> None:
        """C2."""
        store = await world.open()
        _, run, [(task, given)] = await offered(store)
        await store.accept(Accept("w1", [(task, given)]))
        ended = End(task, given, "failed", error=b'{"type":"E","message":""}')
        assert await store.finish(Finish("w1", [ended, ended])) == []
        assert await store.finish(Finish("w1", [ended])) == []
        assert [after for _, after in await changes_of(store, run)].count("failed") == 1
        assert await store.stale_writes() == 0

    async def test_a_stale_end_changes_nothing_and_is_reported(self, world: StoreScene) -> None:
        store = await world.open()
        _, run, [(task, given)] = await offered(store)
        await store.accept(Accept("w1", [(task, given)]))
        late = [
            End(task, given - 1, "completed", b"x"),
            End(task + 1, given, "completed", b"x"),
        ]
        assert await store.finish(Finish("w1", late)) == [(task, given - 1), (task + 1, given)]
        await store.finish(Finish("w1", [End(task, given, "completed", b"ok")]))
        contrary = End(task, given, "failed")
        assert await store.finish(Finish("w1", [contrary])) == [(task, given)]
        [row] = await store.tasks(run)
        assert (row.state, row.output) == ("completed", b"ok")
        assert await store.stale_writes() == 3

    async def test_a_decline_costs_no_attempt(self, world: StoreScene) -> None:
        store = await world.open()
        _, run, [(task, given)] = await offered(store)
        declined = End(task, given, "handed_back", reason="resource_exhausted")
        assert await store.finish(Finish("w1", [declined])) == []
        assert await store.finish(Finish("w1", [declined])) == []
        [row] = await store.tasks(run)
        assert (row.state, row.attempt, row.held) == ("handed_back", 0, None)
        assert await store.orders("w1") == []
        event = (await history(store, run))[-1]
        assert (event.before, event.data) == ("scheduled", {"reason": "resource_exhausted"})

    async def test_an_offer_cannot_be_completed_without_acceptance(self, world: StoreScene) -> None:
        store = await world.open()
        _, _, [(task, given)] = await offered(store)
        ended = End(task, given, "completed", b"1")
        assert await store.finish(Finish("w1", [ended])) == [(task, given)]

    async def test_many_ends_of_many_sizes(self, world: StoreScene) -> None:
        store = await world.open()
        _, run, pairs = await offered(store, tasks=301)
        await store.accept(Accept("w1", pairs))
        outputs = [b"x" * (n * 37 % 6_000) for n in range(len(pairs))]
        ended = [
            End(task, given, "completed", output)
            for (task, given), output in zip(pairs, outputs, strict=True)
        ]
        assert await store.finish(Finish("w1", ended)) == []
        assert [row.output for row in await store.tasks(run)] == outputs

    async def test_leaving(self, world: StoreScene) -> None:
        store = await world.open()
        await join(store)
        await store.leave("w1")
        await store.leave("w1")
        assert await store.workers() == []
        assert [event.after for event in await history(store)] == ["joined", "left"]

    async def test_a_worker_that_leaves_with_attempts_loses_none(self, world: StoreScene) -> None:
        store = await world.open()
        leader, _, pairs = await offered(store)
        await store.accept(Accept("w1", pairs))
        await store.leave("w1")
        [lost] = await expire_passed(store, leader.term, leader.actor)
        assert lost.abandoned == pairs
        assert await store.workers() == []


async def waited(store: Store, timeout_us: int, since: int = -1) -> float:
    started = time.monotonic()
    await store.wait(timeout_us, since)
    return time.monotonic() - started


LONG_WAIT_US = 3_600 * SECOND
GIVE_UP_SECONDS = 60.0


class TestWaking:
    async def test_a_wait_ends_at_its_timeout(self, world: StoreScene) -> None:
        store = await world.open()
        async with asyncio.timeout(GIVE_UP_SECONDS):
            await store.wait(0)
            assert await waited(store, 100 * MILLISECOND) >= 0.1

    async def test_another_stores_commit_ends_a_wait(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        waiting = asyncio.ensure_future(store.wait(LONG_WAIT_US))
        await submitted(other)
        await asyncio.wait_for(waiting, GIVE_UP_SECONDS)

    async def test_an_own_commit_ends_no_wait(self, world: StoreScene) -> None:
        store = await world.open()
        waiting = asyncio.ensure_future(waited(store, 200 * MILLISECOND))
        await submitted(store)
        assert await waiting >= 0.2

    async def test_what_came_before_the_wait_is_not_missed(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        await store.wait(0)
        await submitted(other)
        await asyncio.wait_for(store.wait(LONG_WAIT_US), GIVE_UP_SECONDS)

    async def test_two_who_wait_on_one_store_both_learn_of_it(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader_mark = worker_mark = await store.wait(0)
        await submitted(other)
        async with asyncio.timeout(GIVE_UP_SECONDS):
            leader_mark = await store.wait(LONG_WAIT_US, leader_mark)
            await store.wait(LONG_WAIT_US, worker_mark)
        assert leader_mark > worker_mark

    async def test_many_wait_at_once(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        waiting = [asyncio.ensure_future(store.wait(LONG_WAIT_US)) for _ in range(5)]
        await submitted(other)
        await asyncio.wait_for(asyncio.gather(*waiting), GIVE_UP_SECONDS)

    async def test_ends_of_runs_are_heard_of(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(other)
        runs = [(await submitted(other)).seq for _ in range(3)]
        await leader.start(*runs)
        async with asyncio.timeout(GIVE_UP_SECONDS):
            assert (await store.wait_for_ends(LONG_WAIT_US)).look  # the first time
            heard = asyncio.ensure_future(store.wait_for_ends(LONG_WAIT_US))
            await leader.end(runs[1])
            ended: set[int] = set()
            while not ended:
                found = await heard
                states = await store.run_states(runs) if found.look else {}
                ended |= {run for run, state in states.items() if state == "succeeded"}
                ended |= set(found.runs)
                heard = asyncio.ensure_future(store.wait_for_ends(LONG_WAIT_US))
        heard.cancel()
        assert ended == {runs[1]}

    async def test_after_the_timeout_one_looks(self, world: StoreScene) -> None:
        store = await world.open()
        await store.wait_for_ends(0)
        assert (await store.wait_for_ends(MILLISECOND)).look

    async def test_who_has_forgotten_ends_looks_first(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(other)
        run = (await submitted(other)).seq
        await leader.start(run)
        async with asyncio.timeout(GIVE_UP_SECONDS):
            await store.wait_for_ends(0)
            await store.forget_ends()
            await leader.end(run)
            ended = await store.wait_for_ends(LONG_WAIT_US)
            while not (ended.look or run in ended.runs):
                ended = await store.wait_for_ends(LONG_WAIT_US)

    async def test_a_leader_hears_of_acceptances_and_of_ends(self, world: StoreScene) -> None:
        """An acceptance may be named instead of looked at; everything else is looked at."""
        store, other = await world.open(), await world.open()
        _, _, pairs = await offered(store)
        async with asyncio.timeout(GIVE_UP_SECONDS):
            assert (await store.wait_for_changes(LONG_WAIT_US)).look  # the first time
            await other.accept(Accept("w1", pairs))
            heard = await store.wait_for_changes(LONG_WAIT_US)
            while not (heard.look or heard.accepted_by):
                heard = await store.wait_for_changes(LONG_WAIT_US)
            assert heard.accepted_by <= {"w1"}
            await other.finish(Finish("w1", [End(*pairs[0], TaskState.COMPLETED, b"1")]))
            while not (await store.wait_for_changes(LONG_WAIT_US)).look:
                pass
        await store.wait_for_changes(0)
        assert (await store.wait_for_changes(MILLISECOND)).look
