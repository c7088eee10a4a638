"""B2, B3, B8, B9, D3–D5, D8 over processes: which worker gets a task, when, and at what cost."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.cluster import Cluster, ClusterNode
from tests.support.fleet import (
    FILES,
    TIMEOUT,
    Measured,
    ended,
    fleet,
    join,
    joined,
    pids,
    start,
    steps,
)
from tests.support.leases import KEPT, lapse
from tests.support.sampled import one_store

from locktender import Client, RunState
from locktender.base.clock import SystemClock
from locktender.testing import Overlap, eventually

pytest_plugins = [
    "locktender.testing.plugin",
    "locktender.testing.postgres",
    "tests.support.shared_cluster",
]

NO_POLL: dict[str, Any] = {"poll": "10m"}
"""Whoever is not woken does nothing for longer than the test waits."""


def where(client: Client, overlap: Overlap, latch: Path, item: int) -> int:
    """Submits one body and tells in which process it began."""
    client.submit(fleet.holding, str(latch), item)
    eventually(lambda: str(item) in overlap.labels("held"))
    return next(span.pid for span in overlap.spans("held") if span.label == str(item))


@one_store("sqlite")
def test_b2_pack_fills_workers_in_a_stable_order(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    """The first that joined is the first asked, every time; past a busy one, past a vanished one."""
    cluster.server(placement="pack", offer_ttl="10m").ready()
    first, second, third = (join(cluster, async_permits=2, **KEPT) for _ in range(3))
    client = cluster.client()
    client.limits.set_max_concurrent_runs(-1)
    done, latch = tmp_path / "done", tmp_path / "latch"
    done.touch()

    for item in range(5):  # nothing else runs: always the same one
        assert where(client, overlap, done, item) == first.pid
        eventually(lambda: not client.runs.list(status="running"))
    busy = [where(client, overlap, latch, item) for item in range(10, 13)]
    assert busy == [first.pid, first.pid, second.pid]
    first.kill()

    lapse(cluster.url, first)
    # Its two go to who is next in the order and has room; so does what comes after them.
    eventually(lambda: overlap.count("held") == 5 + 3 + 2)
    assert where(client, overlap, latch, 20) == third.pid
    latch.touch()
    runs = [client.runs.get(each.id) for each in client.runs.list()]
    assert ended(runs) == {"succeeded"}
    assert Counter(pids(overlap, "held")) == {first.pid: 7, second.pid: 2, third.pid: 2}


@one_store("postgres")
def test_b3_no_worker_at_all(cluster: Cluster, overlap: Overlap, tmp_path: Path):
    """Tasks stay requested and say so; a worker that does not know the step changes only what they say."""
    server = cluster.server().ready()
    client = cluster.client()
    (tmp_path / "latch").touch()
    run = client.submit(fleet.holding, str(tmp_path / "latch"), 7)
    eventually(lambda: [str(task.state) for task in run.tasks()] == ["requested"])
    assert "no worker is connected" in str(run.why())

    (tmp_path / "strangers.py").write_text(
        "from locktender import step\n\n@step\ndef odd() -> int:\n    return 1\n"
    )
    stranger = cluster.worker(tmp_path / "strangers.py").ready()
    says = "the only worker cannot run step fleet_steps:hold: it does not know it"
    eventually(lambda: says in str(run.why()))
    assert run.tasks()[0].attempt == 0
    join(cluster)

    assert run.result(TIMEOUT) == 7
    assert stranger.pid not in pids(overlap, "held")
    assert (stranger.close(), server.close()) == (0, 0)


@one_store("sqlite")
def test_b8_fifteen_runs_and_then_three_workers_of_one_permit(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    cluster.server(max_concurrent_runs=-1).ready()
    client = cluster.client()
    latch = tmp_path / "latch"
    runs = client.submit_many(steps.hold, [(str(latch), n) for n in range(15)])
    eventually(lambda: all(run.tasks() for run in runs))
    assert overlap.names() == []

    workers = [cluster.worker(*FILES, async_permits=1) for _ in range(3)]
    for worker in workers:
        worker.ready()
    eventually(lambda: overlap.count("held") == 3)
    latch.touch()

    assert ended(runs) == {"succeeded"}
    assert (overlap.count("held"), overlap.peak("held")) == (15, 3)
    assert set(pids(overlap, "held")) == {worker.pid for worker in workers}
    assert {(task.attempt, str(task.state)) for run in runs for task in run.tasks()} == {
        (1, "completed")
    }


@one_store("postgres")
def test_b9_c3_nobody_has_to_ask_again(cluster: Cluster, overlap: Overlap, tmp_path: Path):
    """Submitted to nobody, begun under one leader, ended under the next: finished steps are not run again."""
    client = cluster.client()
    latch = tmp_path / "latch"
    run = client.submit(steps.chain, str(latch))  # before anybody leads or works
    assert run.status() == RunState.QUEUED
    other = client.submit(steps.chain, str(latch))
    assert not other.cancel("changed my mind").leader  # C3: remembered until somebody leads
    worker = join(cluster, worker_lease="60s", heartbeat="100ms")
    server = cluster.server().ready()
    eventually(lambda: "held" in overlap.names())

    # What beats is never touched, however long it takes: its lease moves on with every beat.
    for _ in range(3):
        until = client.workers.get(joined(client, worker)).lease_until
        eventually(lambda u=until: client.workers.get(joined(client, worker)).lease_until > u)
    assert server.close() == 0
    cluster.server().ready()
    latch.touch()

    assert run.wait(TIMEOUT) == RunState.SUCCEEDED
    assert (other.wait(TIMEOUT), other.tasks()) == (RunState.CANCELLED, [])
    assert [overlap.count(name) for name in ("first", "held", "last")] == [1, 1, 1]
    assert {task.attempt for task in run.tasks()} == {1}


@pytest.mark.slow
@one_store("postgres")
def test_d3_memory_stays_flat_over_ten_thousand_tasks(
    cluster: Cluster, store: str, measured: Measured
):
    """The worker's resident memory, from outside. Once it is warm it must not grow with what was done."""
    (worker,) = start(cluster, 1)
    client = cluster.client()
    process = psutil.Process(worker.pid)
    assert client.submit(fleet.ticks, list(range(2_000))).result("90s") == 2_000
    warm = process.memory_info().rss

    began = time.monotonic()
    runs = client.submit_many(fleet.ticks, [(list(range(1_000)),) for _ in range(10)])
    seen: list[int] = []
    while client.runs.list(status=["queued", "running"], limit=1):
        seen.append(process.memory_info().rss)
    seen.append(process.memory_info().rss)

    measured(f"{store}_tasks_per_second", round(10_000 / (time.monotonic() - began)))
    measured(f"{store}_grown_mib", round((max(seen) - warm) / 2**20, 1))
    assert [run.result(TIMEOUT) for run in runs] == [1_000] * 10
    assert max(seen) - warm < 24 << 20


@one_store("sqlite")
def test_d4_d8_work_is_spread_and_affinity_is_a_preference(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    workers = start(cluster, 3, async_permits=4, server={"offer_ttl": "10m"})
    client = cluster.client()
    client.limits.set_max_concurrent_runs(-1)

    # D4: tasks for half of their permits go to all workers alike
    even = tmp_path / "even"
    spread = [client.submit(fleet.holding, str(even), n, "even") for n in range(6)]
    eventually(lambda: overlap.count("even") == 6)
    assert Counter(pids(overlap, "even")) == {worker.pid: 2 for worker in workers}
    even.touch()
    assert ended(spread) == {"succeeded"}
    # D8: steps of one affinity stay where the first of them went …
    for _ in range(3):
        assert client.submit(fleet.warmed, 6).result(TIMEOUT) == 0
    went = pids(overlap, "warm")
    assert [len(set(went[at : at + 6])) for at in (0, 6, 12)] == [1, 1, 1]
    # … unless that worker is full: nobody waits for it
    latch = tmp_path / "latch"
    held = [client.submit(fleet.holding, str(latch), n) for n in range(9)]
    eventually(lambda: overlap.count("held") == 9)
    assert client.submit(fleet.warmed, 4).result(TIMEOUT) == 0
    latch.touch()
    assert ended(held) == {"succeeded"}


def test_d8_e5_an_idle_cluster_is_woken_and_does_not_poll(
    cluster: Cluster, overlap: Overlap, store: str, tmp_path: Path, measured: Measured
):
    """Over three processes of which none polls: a submission, a changed limit and a release each wake
    whom they concern. How long it takes is reported."""
    start(cluster, 1, **NO_POLL, server=NO_POLL)
    client = cluster.client()
    client.limits.set_max_concurrent_runs(-1)
    (tmp_path / "latch").touch()
    waits: list[float] = []
    for item in range(9):
        began = SystemClock().monotonic() / 1e6
        assert client.submit(fleet.holding, str(tmp_path / "latch"), item).result(TIMEOUT) == item
        waits.append(overlap.spans("held")[-1].began_us / 1_000 - began * 1_000)
    measured(f"{store}_submit_to_start_p50_ms", round(sorted(waits)[4], 1))

    latches = [tmp_path / f"latch-{n}" for n in range(8)]
    client.pools.set("narrow", limit=1)
    runs = [client.submit(steps.locking, str(latch), n) for n, latch in enumerate(latches)]
    eventually(lambda: overlap.count("narrow") == 1)
    began = SystemClock().monotonic() / 1e6
    client.pools.set("narrow", limit=3)
    eventually(lambda: overlap.count("narrow") == 3)
    measured(
        f"{store}_raised_ms", round(overlap.spans("narrow")[2].began_us / 1e3 - began * 1e3, 1)
    )
    client.pools.set("narrow", limit=1)
    for number, latch in enumerate(latches):
        eventually(lambda n=number: overlap.count("narrow") >= n + 1)
        latch.touch()
    assert [run.result(TIMEOUT) for run in runs] == list(range(8))
    spans = overlap.spans("narrow")
    assert [span.label for span in spans] == [str(n) for n in range(8)]  # the right one, by age
    gaps = sorted(after.began_us - (before.ended_us or 0) for before, after in pairwise(spans[3:]))
    measured(f"{store}_hand_off_p50_ms", gaps[len(gaps) // 2] / 1000)


@one_store("postgres")
def test_d5_a_worker_that_is_told_to_end_in_the_middle_of_a_task(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    """What it cannot finish within its grace is handed back at once, and completed elsewhere."""
    cluster.server().ready()
    first = join(cluster, grace="200ms")
    client = cluster.client()
    run = client.submit(fleet.holding, str(tmp_path / "latch"), 5)
    eventually(lambda: overlap.count("held") == 1)
    second: ClusterNode = join(cluster)

    assert first.close() == 0
    eventually(lambda: pids(overlap, "held") == [first.pid, second.pid])
    (tmp_path / "latch").touch()

    assert run.result(TIMEOUT) == 5
    after = [event.after for event in run.events() if event.subject == "task"]
    assert after.count("handed_back") == 1
    assert after.count("abandoned") == 0
