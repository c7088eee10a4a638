"""Cached results over a server and workers that are killed: taken without a worker, kept after an attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.leases import KEPT, lapse

from locktender.testing import Overlap, eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "cache_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "90s"


def test_a_hit_needs_no_worker_and_survives_a_killed_leader(cluster: Cluster, overlap: Overlap):
    server = cluster.server(**KEPT).ready()
    worker = cluster.worker(STEPS_FILE, **KEPT).ready()
    client = cluster.client()
    client.pools.set("db", limit=1)
    assert client.submit(steps.fetches, [1, 2, 3]).result(TIMEOUT) == [10, 20, 30]
    assert overlap.peak("fetch") == 1
    for node in (worker, server):
        node.kill()
        lapse(cluster.url, node)
    run = client.submit(steps.fetches, [3, 1])
    cluster.server(**KEPT).ready()
    # nobody could run a body
    assert run.result(TIMEOUT) == [30, 10]
    assert [(task.cached, task.attempt) for task in run.tasks()] == [(True, 0)] * 2


@pytest.mark.long
def test_a_killed_workers_attempt_is_repeated_and_kept(cluster: Cluster, tmp_path: Path):
    cluster.server(**KEPT).ready()
    worker = cluster.worker(STEPS_FILE, **KEPT).ready()
    client = cluster.client()
    run = client.submit(steps.holds, str(tmp_path), 7)
    eventually(lambda: list(tmp_path.glob("began-*")))
    worker.kill()
    lapse(cluster.url, worker)
    assert client.cache.list() == []
    (tmp_path / "go").touch()
    cluster.worker(STEPS_FILE, **KEPT).ready()
    assert run.result(TIMEOUT) == 7
    # by the key alone: its other arguments do not count
    again = client.submit(steps.holds, "elsewhere", 17)
    assert again.result(TIMEOUT) == 7
    assert {task.name: task.cached for task in again.tasks()} == {
        "held_up.key": False,
        "held_up": True,
    }
