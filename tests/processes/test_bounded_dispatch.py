"""Seed 001 as one story, with real processes: shed at the door, queue durably, spawn, drain to zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate import AdmissionRejected
from headgate.stages.executors.sources import load
from headgate.testing import Overlap, eventually
from headgate.testing.cluster import Cluster
from headgate.testing.processes import source

pytest_plugins = ["headgate.testing.plugin", "headgate.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "engine_steps.py"
steps: Any = load(source(STEPS_FILE))
CEILING = 15
WORKERS = 3
BODY_SECONDS = 0.4
IDLE_SECONDS = 1.0


def test_b4_b6_b8_b15_the_whole_story(cluster: Cluster, overlap: Overlap):
    client = cluster.client()
    client.limits.set_max_active(CEILING)
    client.limits.set_max_concurrent_runs(-1)
    server = cluster.server().ready()

    # with no worker, 15 stay queued and say why; the 16th is shed, and leaves nothing behind
    runs = [client.submit(steps.many, [n], BODY_SECONDS, key=f"run-{n}") for n in range(CEILING)]
    with pytest.raises(AdmissionRejected) as rejected:
        client.submit(steps.many, [99], BODY_SECONDS, key="run-99")
    assert 1 <= rejected.value.retry_after <= 3_600
    assert client.submit(steps.many, [3], BODY_SECONDS, key="run-3").id == runs[3].id
    assert len(client.runs.list(limit=100)) == CEILING
    eventually(lambda: any("worker" in str(run.why()) for run in runs))
    assert not overlap.names()

    # the one that leads dies; its successor has a provisioner
    server.kill()
    spawning = cluster.server(
        spawn=STEPS_FILE,
        max_workers=WORKERS,
        async_permits=1,
        total_permits=1,
        provision_interval="100ms",
        provisioned_idle_exit=f"{IDLE_SECONDS:.0f}s",
    ).ready()

    assert [run.result("60s") for run in runs] == [[2 * n] for n in range(CEILING)]
    # as many at once as there are workers, each in a process of its own; nobody asked for a fourth
    assert overlap.peak("work") == WORKERS
    assert len({span.pid for span in overlap.spans("work")}) == WORKERS
    eventually(lambda: client.workers.list() == [], "30s", "all workers to end themselves")
    assert spawning.log.count("starting") <= WORKERS
    # and it comes back for one more
    assert client.submit(steps.many, [7], 0.0).result("30s") == [14]
    assert spawning.close() == 0
    assert client.workers.list() == []
