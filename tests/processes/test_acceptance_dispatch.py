"""B2, B3, B8, B9, D3–D5, D8 over processes: who gets a task, when, and what it costs them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.processes.fleet import (
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

from locktender import Client, RunState
from locktender.testing import Overlap, eventually
from locktender.testing.cluster import Cluster, ClusterNode

pytest_plugins = [
    "locktender.testing.plugin",
    "locktender.testing.postgres",
    "tests.processes.standing",
]

QUICK: dict[str, Any] = {"worker_lease": "1500ms", "heartbeat": "300ms"}


def where(client: Client, overlap: Overlap, latch: Path, item: int) -> int:
    """Submits one body and tells in which process it began."""
    client.submit(fleet.holding, str(latch), item)
    eventually(lambda: str(item) in overlap.labels("held"))
    return next(span.pid for span in overlap.spans("held") if span.label == str(item))


def test_b2_pack_fills_workers_in_a_stable_order(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    """The first that joined is the first asked, every time; past a busy one, past a vanished one."""
    cluster.server(placement="pack", offer_ttl="500ms").ready()
    first, second, third = (join(cluster, async_permits=2, **QUICK) for _ in range(3))
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

    # Its two are found out by its lease, and go to who is next in the order and has room.
    assert where(client, overlap, latch, 20) == second.pid
    eventually(lambda: overlap.count("held") == 5 + 3 + 1 + 2)
    latch.touch()
    runs = [client.runs.get(each.id) for each in client.runs.list()]
    assert ended(runs) == {"succeeded"}
    assert Counter(pids(overlap, "held")) == {first.pid: 7, second.pid: 2, third.pid: 2}


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


def test_b9_c3_nobody_has_to_ask_again(cluster: Cluster, overlap: Overlap, tmp_path: Path):
    """Submitted to nobody, begun under one leader, ended under the next: finished steps are not run again."""
    client = cluster.client()
    latch = tmp_path / "latch"
    run = client.submit(steps.chain, str(latch))  # before anybody leads or works
    assert run.status() == RunState.QUEUED
    other = client.submit(steps.chain, str(latch))
    assert not other.cancel("changed my mind").leader  # C3: remembered until somebody leads
    worker = join(cluster, **QUICK)
    server = cluster.server().ready()
    eventually(lambda: "held" in overlap.names())

    # What beats is never touched, however long it takes: here for more than two leases.
    began = client.workers.get(joined(client, worker)).lease_until
    eventually(
        lambda: (client.workers.get(joined(client, worker)).lease_until - began).total_seconds() > 3
    )
    assert server.close() == 0
    cluster.server().ready()
    latch.touch()

    assert run.wait(TIMEOUT) == RunState.SUCCEEDED
    assert (other.wait(TIMEOUT), other.tasks()) == (RunState.CANCELLED, [])
    assert [overlap.count(name) for name in ("first", "held", "last")] == [1, 1, 1]
    assert {task.attempt for task in run.tasks()} == {1}


@pytest.mark.slow
def test_d3_memory_stays_flat_over_ten_thousand_tasks(
    cluster: Cluster, store: str, measured: Measured
):
    """The worker's resident memory, from outside. Once it is warm it must not grow with what was done."""
    (worker,) = start(cluster, 1)
    client = cluster.client()
    process = psutil.Process(worker.pid)
    assert client.submit(fleet.ticks, list(range(2_000))).result("60s") == 2_000
    warm = process.memory_info().rss

    began = time.monotonic()
    runs = client.submit_many(fleet.ticks, [(list(range(1_000)),) for _ in range(10)])
    seen: list[int] = []
    while client.runs.list(status=["queued", "running"], limit=1):
        seen.append(process.memory_info().rss)

    measured(f"{store}_tasks_per_second", round(10_000 / (time.monotonic() - began)))
    measured(f"{store}_grown_mib", round((max(seen) - warm) / 2**20, 1))
    assert [run.result(TIMEOUT) for run in runs] == [1_000] * 10
    assert max(seen) - warm < 24 << 20


def test_d4_d8_work_is_spread_and_affinity_is_a_preference(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, measured: Measured
):
    workers = start(cluster, 3, async_permits=4)
    client = cluster.client()

    # D4: of tasks for half of them the busiest worker gets at most half more than the idlest
    assert len(client.submit(fleet.lengths, [0.005] * 240, 6).result(TIMEOUT)) == 240
    by_pid = Counter(pids(overlap, "takes"))
    measured("spread", sorted(by_pid.values()))
    assert set(by_pid) == {worker.pid for worker in workers}
    assert max(by_pid.values()) <= 1.5 * min(by_pid.values())
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


def test_d8_an_idle_cluster_is_woken_and_does_not_poll(
    cluster: Cluster, overlap: Overlap, store: str, tmp_path: Path, measured: Measured
):
    """From submit to the body's first line, over three processes; by polling it would be a second."""
    start(cluster, 1, poll="1s", server={"poll": "1s"})
    client = cluster.client()
    (tmp_path / "latch").touch()
    waits: list[float] = []
    for item in range(21):
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert client.submit(fleet.holding, str(tmp_path / "latch"), item).result(TIMEOUT) == item
        waits.append(overlap.spans("held")[-1].began_us / 1_000 - began * 1_000)

    waits.sort()
    measured(f"{store}_submit_to_start_p50_ms", round(waits[10], 1))
    measured(f"{store}_submit_to_start_max_ms", round(waits[-1], 1))
    assert waits[10] < 200


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
