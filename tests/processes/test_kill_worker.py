"""SIGKILL of workers: their tasks run elsewhere, their slots come back, nothing is counted twice (D5, E5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.failover import (
    QUICK,
    STEPS_FILE,
    Load,
    Watch,
    query,
    recorded_once,
    result,
    steps,
    unfinished,
    works,
)
from tests.support.leases import KEPT, lapse
from tests.support.sampled import one_store

from locktender.testing import Overlap, eventually
from locktender.testing.overlap import alive

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]


@one_store("sqlite")
def test_d5_killed_in_the_middle_of_its_tasks(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, record_property: Any
):
    """Async, thread and process go on in another worker."""
    latch = tmp_path / "latch"
    client = cluster.client()
    cluster.server().ready()
    labels = {"where": "apart"}
    first = cluster.worker(STEPS_FILE, labels=labels, **KEPT).ready()
    run = client.submit(steps.apart, str(latch))
    eventually(lambda: overlap.count("apart") == 3 if "apart" in overlap.names() else 0)
    child = next(span.pid for span in overlap.spans("apart") if span.label == "process")
    second = cluster.worker(STEPS_FILE, labels=labels, **KEPT).ready()

    first.kill()
    eventually(lambda: not alive(child))
    lapse(cluster.url, first)
    watch = Watch()
    record_property("recovery", watch.until(lambda: overlap.count("apart") == 6))
    latch.touch()

    assert result(run) == ["async", "thread", "process"]
    assert {span.pid for span in overlap.spans("apart") if span.label != "process"} == {
        first.pid,
        second.pid,
    }
    assert overlap.peak("apart") == 3
    assert {task.attempt for task in run.tasks()} == {2}
    recorded_once(cluster.url)


@one_store("postgres")
def test_d5_one_after_another_under_load(cluster: Cluster, overlap: Overlap, record_property: Any):
    client = cluster.client()
    cluster.server(**QUICK).ready()
    workers = [cluster.worker(STEPS_FILE, **QUICK).ready() for _ in range(2)]
    slowest = 0.0
    with Load(client) as load:
        for number in range(2):
            eventually(lambda n=number: len(load.runs) > 5 * (n + 1))
            workers.pop(0).kill()
            watch = Watch()
            hit = list(load.open)
            workers.append(cluster.worker(STEPS_FILE, **QUICK))
            slowest = max(slowest, watch.until(lambda hit=hit: not unfinished(hit)))
            workers[-1].ready()
    load.check(overlap, at_least=10)
    record_property("recovery", slowest)
    works(client)
    recorded_once(cluster.url)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_c2_end_and_loss_of_the_leaders_own_tasks_meet(cluster: Cluster, overlap: Overlap):
    """The end and the loss of an attempt meet in one cycle of one process: one of them counts."""
    client = cluster.client()
    cluster.worker(STEPS_FILE, lead=True).ready()
    with Load(client) as load:
        for number in range(4):
            eventually(lambda n=number: len(load.runs) > 6 * (n + 1))
            query(cluster.url, "UPDATE locktender.worker SET lease_until = 0")
            known = {row["id"] for row in query(cluster.url, "SELECT id FROM locktender.worker")}
            eventually(lambda known=known: {w.id for w in client.workers.list()} - known)
    # Its lease was taken from it without its knowledge: what it ran may still end beside its successor.
    load.check(overlap, limits=False)
    recorded_once(cluster.url)
