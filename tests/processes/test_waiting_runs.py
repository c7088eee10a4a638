"""Runs that wait for their time, over processes that are killed (G1, G5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.leases import KEPT, lapse

from locktender import RunState
from locktender.testing import Overlap, eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "wait_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "90s"


def test_g1_a_delayed_run_is_woken_by_the_next_leader(cluster: Cluster, overlap: Overlap):
    server = cluster.server(**KEPT).ready()
    cluster.worker(STEPS_FILE, **KEPT).ready()
    client = cluster.client()
    client.limits.set_max_concurrent_runs(1)
    delayed = [client.submit(steps.note, n, delay="2s") for n in range(20)]
    late = client.submit(steps.note, 99, delay="1h")
    server.kill()
    lapse(cluster.url, server)
    cluster.server(**KEPT).ready()
    assert client.submit(steps.note, 50).result(TIMEOUT) == 50
    assert [run.result(TIMEOUT) for run in delayed] == list(range(20))
    assert late.status() is RunState.WAITING
    assert overlap.peak("noted") == 1
    late.cancel()
    assert late.wait(60)


def test_g1_g5_a_sleep_over_killed_leaders_and_workers(cluster: Cluster, overlap: Overlap):
    server = cluster.server(**KEPT).ready()
    worker = cluster.worker(STEPS_FILE, **KEPT).ready()
    client = cluster.client()
    client.limits.set_max_concurrent_runs(1)
    runs = [client.submit(steps.diamond, n) for n in range(6)]
    long = client.submit(steps.long_sleep, 50)
    eventually(lambda: long.status() is RunState.WAITING, 60)
    # nobody who sleeps keeps anybody from the only place
    assert client.submit(steps.note, 60).result(TIMEOUT) == 60
    for node in (worker, server):
        node.kill()
        lapse(cluster.url, node)
    cluster.server(**KEPT).ready()
    cluster.worker(STEPS_FILE, **KEPT).ready()
    assert [run.result(TIMEOUT) for run in runs] == [2 * n for n in range(6)]
    assert overlap.peak("joined") == 1
    # ended while it waits, it still cleans up
    long.cancel()
    assert long.wait(60)
    assert long.status() is RunState.CANCELLED
    assert [span.label for span in overlap.spans("cleaned")] == ["50"]


def test_g5_a_mutex_is_kept_over_killed_leaders(cluster: Cluster, overlap: Overlap):
    server = cluster.server(**KEPT).ready()
    worker = cluster.worker(STEPS_FILE, **KEPT).ready()
    client = cluster.client()
    client.limits.set_tag("account", limit=1, per_value=True, counts_while_waiting=True)
    first = client.submit(steps.booking, 1, tags={"account": "x"})
    eventually(lambda: first.status() is RunState.WAITING, 60)
    second = client.submit(steps.booking, 2, tags={"account": "x"}, priority=5)
    other = client.submit(steps.note, 3, tags={"account": "y"})
    assert other.result(TIMEOUT) == 3
    for node in (worker, server):
        node.kill()
        lapse(cluster.url, node)
    cluster.server(**KEPT).ready()
    cluster.worker(STEPS_FILE, **KEPT).ready()
    assert client.submit(steps.note, 4, tags={"account": "z"}).result(TIMEOUT) == 4
    [reason] = second.why().reasons
    assert (reason.gate, [each.run for each in reason.holders]) == ("tag:account=*x", [first.id])
    first.send("go", "first")
    assert first.result(TIMEOUT) == "first"
    second.send("go", "second")
    assert second.result(TIMEOUT) == "second"
    assert [span.label for span in overlap.spans("answered")] == ["first", "second"]
    noted = [span.label for span in overlap.spans("noted")]
    assert noted.index("2") > noted.index("4")
