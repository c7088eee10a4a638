"""SIGSTOP of workers and leaders: they lose their leases, and when they wake up they change nothing (B12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, ClusterNode
from tests.support.failover import (
    STEPS_FILE,
    Load,
    Watch,
    led,
    recorded_once,
    result,
    steps,
    works,
)
from tests.support.leases import KEPT, lapse
from tests.support.sampled import one_store
from tests.support.stopping import pause_outside_of_a_write, stop_inside_a_transaction

from locktender.testing import Overlap, eventually, load_history
from locktender.testing.overlap import alive

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
PAUSED: dict[str, str] = {"worker_lease": "12s", "heartbeat": "500ms"}
"""Of one that is stopped past its lease: what it has started must end by itself."""


def noticed(overlap: Overlap, name: str, node: ClusterNode) -> bool:
    """Whether everything that the woken process ran has ended, or the process itself."""
    return node.returncode is not None or all(
        lasted is not None for span, lasted in overlap.woken(name) if span.pid == node.pid
    )


def test_b12_a_paused_worker_wakes_up_without_its_tasks(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, record_property: Any
):
    """Its bodies overlap with their successors for as long as it takes to notice; that is reported."""
    latch = tmp_path / "latch"
    client = cluster.client()
    # Its child ends at the deadline; what follows may start when this has passed, too.
    cluster.server(stall_grace="5s").ready()
    labels = {"where": "apart"}
    paused = cluster.worker(STEPS_FILE, labels=labels, **PAUSED).ready()
    run = client.submit(steps.apart, str(latch))
    eventually(lambda: overlap.count("apart") == 3 if "apart" in overlap.names() else 0)
    child = next(span.pid for span in overlap.spans("apart") if span.label == "process")
    other = cluster.worker(STEPS_FILE, labels=labels, **KEPT).ready()

    pause_outside_of_a_write(paused, cluster.url)
    watch = Watch()
    record_property("recovery", watch.until(lambda: overlap.count("apart") == 6))
    eventually(lambda: not alive(child))  # it ended itself, at its deadline
    paused.resume()
    eventually(lambda: noticed(overlap, "apart", paused))

    late = [lasted for _, lasted in overlap.woken("apart") if lasted is not None]
    record_property("overlap of the woken (us)", max(late, default=0))
    latch.touch()
    assert result(run) == ["async", "thread", "process"]
    ends = [event for event in run.events() if event.after == "completed"]
    assert len(ends) == 3
    assert all(f"-{other.pid}-" in event.actor for event in ends)
    assert "lost" in paused.log
    # What does not stand in a thread can be stopped: then the woken process is of use again.
    assert paused.returncode in (None, 75)
    assert overlap.peak("apart") == 3
    recorded_once(cluster.url)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_b12_a_stopped_leader_and_worker_are_replaced(
    cluster: Cluster, overlap: Overlap, record_property: Any
):
    """The leader stands inside a transaction and holds the leader's row: its own lease has to pass."""
    client = cluster.client()
    leader = cluster.server().ready()
    second = cluster.server().ready()
    workers = [cluster.worker(STEPS_FILE, **KEPT).ready() for _ in range(2)]
    with Load(client) as load:
        eventually(lambda: len(load.runs) > 5)
        record_property("tries", stop_inside_a_transaction(leader, cluster.url))
        watch = Watch()
        fresh = client.submit(steps.hold, "", 1, priority=9)
        took = watch.until(lambda: fresh.status() == "succeeded")
        record_property("take-over", took)
        workers[0].pause()
        hit = list(load.open)
        lapse(cluster.url, workers[0])
        watch = Watch()
        record_property(
            "recovery", watch.until(lambda: all(run.status() == "succeeded" for run in hit))
        )
        eventually(lambda: not _works(client, workers[0]))
        leader.resume()
        workers[0].resume(until_noticed=True)
        term = len(led(cluster.url))
        eventually(lambda: "is over" in leader.log)
        eventually(lambda: noticed(overlap, "db", workers[0]))
        eventually(lambda: workers[0].returncode is not None or _works(client, workers[0]))
        workers[0].noticed()
        eventually(lambda: len(load.runs) >= 10)
    load.check(overlap, at_least=10)
    works(client)
    # Nothing in the history is of the stopped leader's, from the moment another leads.
    told = load_history(cluster.url).events
    taken = next(event.seq for event in told if event.subject == "leader" and event.term == 2)
    assert {event.term for event in told if event.seq > taken} <= {0, *range(2, term + 1)}
    assert led(cluster.url)[0].find(f"-{leader.pid}-") > 0
    assert led(cluster.url)[1].find(f"-{second.pid}-") > 0
    assert {leader.returncode, second.returncode} == {None}
    recorded_once(cluster.url)


@one_store("postgres")
def test_b12_leading_workers_are_paused_and_woken_repeatedly(
    cluster: Cluster, overlap: Overlap, record_property: Any
):
    """Each loses its term and its worker's lease at once, and stands and joins again."""
    client = cluster.client()
    nodes = [cluster.worker(STEPS_FILE, lead=True, **KEPT).ready() for _ in range(2)]
    slowest = 0.0
    with Load(client) as load:
        for number in range(2):
            eventually(lambda n=number: len(load.runs) > 4 * (n + 1))
            owner = led(cluster.url)[-1]
            leader = next(node for node in nodes if f"-{node.pid}-" in owner)
            pause_outside_of_a_write(leader, cluster.url)
            lapse(cluster.url, leader)
            watch = Watch()
            fresh = client.submit(steps.hold, "", 1, priority=9)
            took = watch.until(lambda run=fresh: run.status() == "succeeded")
            slowest = max(slowest, took)
            # It sleeps on until its own worker is given up, too.
            eventually(lambda node=leader: not _works(client, node))
            leader.resume(until_noticed=True)
            eventually(lambda node=leader: node.returncode is not None or _works(client, node))
            leader.noticed()
            if leader.returncode is not None:
                nodes.remove(leader)
                nodes.append(cluster.worker(STEPS_FILE, lead=True, **KEPT).ready())
    record_property("take-over", slowest)
    load.check(overlap, at_least=8)
    works(client)
    recorded_once(cluster.url)


def _works(client: Any, node: ClusterNode) -> bool:
    return any(worker.pid == node.pid and worker.alive for worker in client.workers.list())
