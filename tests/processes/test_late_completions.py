"""Completions delivered twice, late, or by a worker that lost the task: one outcome is recorded (C2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from tests.support.cluster import Cluster
from tests.support.failover import (
    QUICK,
    STEPS_FILE,
    Load,
    recorded_once,
    result,
    steps,
    works,
)
from tests.support.leases import KEPT, lapse
from tests.support.sampled import one_store

from locktender import TaskState
from locktender.base.changes import End
from locktender.store.open import settings_for, store_for
from locktender.store.protocol import Finish, Store
from locktender.testing import Overlap, eventually, load_history

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
T = TypeVar("T")
FAILED = b'{"type":"late","message":"it failed, says somebody"}'


def on_store(url: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """`work` on a store of our own, as a process would have that nobody knows."""

    async def opened() -> T:
        store = store_for(settings_for(url, {}))
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(opened())


def replay(url: str) -> int:
    """Every end that was ever written is delivered again, as it was and as a failure; how many."""
    ends = [
        event
        for event in load_history(url).events
        if event.subject == "task" and event.after == TaskState.COMPLETED
    ]

    async def deliver(store: Store) -> int:
        for event in ends:
            worker = str(event.data.get("by") or event.actor).removeprefix("worker:")
            same = End(event.task, event.token, TaskState.COMPLETED, b"0")
            other = End(event.task, event.token, TaskState.FAILED, error=FAILED)
            older = End(event.task, event.token - 1, TaskState.COMPLETED, b"0")
            await store.finish(Finish(worker, [same]))
            assert await store.finish(Finish(worker, [other])) == [(event.task, event.token)]
            assert await store.finish(Finish(worker, [older])) == [(event.task, event.token - 1)]
        return len(ends)

    return on_store(url, deliver)


@one_store("postgres")
def test_c2_completions_are_delivered_again_while_work_goes_on(cluster: Cluster, overlap: Overlap):
    client = cluster.client()
    cluster.server(**QUICK).ready()
    cluster.worker(STEPS_FILE, **QUICK).ready()
    cluster.worker(STEPS_FILE, lead=True, **QUICK).ready()
    with Load(client) as load:
        for number in range(2):
            # Twelve bodies and their total are a run's; some of these may still be on their way.
            eventually(lambda n=number: overlap.count("total") > 2 * (n + 1))
            assert replay(cluster.url) >= 20 * (number + 1)
    load.check(overlap)
    works(client)
    recorded_once(cluster.url)


@one_store("sqlite")
def test_c2_a_lost_workers_late_completion_is_refused(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    """By token: the same task, another attempt. And once more when that one has ended."""
    latch = tmp_path / "latch"
    client = cluster.client()
    cluster.server().ready()
    first = cluster.worker(STEPS_FILE, **KEPT).ready()
    run = client.submit(steps.hold, str(latch), 7)
    eventually(lambda: "held" in overlap.names())
    [lost] = [
        event
        for event in load_history(cluster.url).events
        if event.subject == "task" and event.after == TaskState.RUNNING
    ]
    worker = str(first.said["worker"])
    first.kill()
    lapse(cluster.url, first)
    cluster.worker(STEPS_FILE, **KEPT).ready()
    eventually(lambda: overlap.count("held") == 2)

    late = Finish(worker, [End(lost.task, lost.token, TaskState.COMPLETED, b"666")])
    stale = [(lost.task, lost.token)]
    assert on_store(cluster.url, lambda store: store.finish(late)) == stale
    assert run.status() == "running"
    latch.touch()

    assert result(run) == 7
    assert on_store(cluster.url, lambda store: store.finish(late)) == stale
    assert result(run) == 7
    recorded_once(cluster.url)
