"""Runs that wait for their time, over processes that are killed (G1, G5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.leases import KEPT, lapse

from locktender import RunState
from locktender.testing import Overlap
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
