"""SIGKILL of the leader: another takes over, and workers go on working (B9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.failover import (
    QUICK,
    STEPS_FILE,
    Load,
    Watch,
    led,
    recorded_once,
    result,
    steps,
    works,
)
from tests.support.sampled import on_stores, one_store

from locktender.testing import Overlap, eventually

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]


@one_store("postgres")
def test_b9_another_server_takes_over(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, record_property: Any
):
    """With the leases of production. What runs is not touched, what was queued meanwhile starts."""
    latch = tmp_path / "latch"
    client = cluster.client()
    leader, _ = cluster.server().ready(), cluster.server().ready()
    worker = cluster.worker(STEPS_FILE).ready()
    running = client.submit(steps.chain, str(latch))
    eventually(lambda: "held" in overlap.names())

    leader.kill()
    watch = Watch()
    waiting = client.submit(steps.hold, "", 5)
    record_property("take-over", watch.until(lambda: waiting.status() == "succeeded"))
    latch.touch()

    assert (result(running), result(waiting)) == (6, 5)
    assert {task.attempt for task in running.tasks()} == {1}
    assert {span.pid for span in overlap.spans("held")} == {worker.pid}
    assert len(set(led(cluster.url))) == 2
    recorded_once(cluster.url)


@on_stores(
    "kind",
    {"server": "server", "worker": "worker"},
    {("postgres", "server"), ("sqlite", "worker")},
)
def test_b9_one_leader_after_another_dies_under_load(
    cluster: Cluster, overlap: Overlap, record_property: Any, kind: str
):
    """A worker that leads takes its own tasks with it."""

    def standing():
        node = (
            cluster.server(**QUICK)
            if kind == "server"
            else cluster.worker(STEPS_FILE, lead=True, **QUICK)
        )
        return node.ready()

    client = cluster.client()
    leaders = [standing(), standing()]
    cluster.worker(STEPS_FILE, **QUICK).ready()
    slowest = 0.0
    with Load(client) as load:
        for number in range(2):
            eventually(lambda n=number: len(load.runs) > 5 * (n + 1))
            leaders.pop(0).kill()
            watch = Watch()
            fresh = client.submit(steps.hold, "", number, priority=9)
            took = watch.until(lambda run=fresh: run.status() == "succeeded")
            slowest = max(slowest, took)
            if number == 0:
                leaders.append(standing())
    load.check(overlap, at_least=10)
    record_property("take-over", slowest)
    assert len(led(cluster.url)) >= 3
    works(client)
    recorded_once(cluster.url)
