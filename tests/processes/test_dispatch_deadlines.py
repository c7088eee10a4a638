"""B7 over processes: every deadline of waiting, wherever it is set, names itself; leaders change meanwhile."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.leases import KEPT
from tests.support.sampled import one_store

from locktender import Run, RunFailed
from locktender.testing import Overlap, eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "dispatch_steps.py"
steps: Any = load(source(STEPS_FILE))
QUICK: dict[str, Any] = {"leader_lease": "1500ms", "leader_renew": "300ms"}
CAPACITY = re.compile(
    r"capacity: no worker with gpu=a100 for ([\d.]+)s \(1 worker, 0 matching, 0 offers not accepted\)"
)
QUEUED = re.compile(r"queue_timeout: paused:shut — waited ([\d.]+)s of at most (\d)s")
LATE_SECONDS = 60.0
"""A sweep each second, and a take-over of a lease and a half in the middle, on a busy machine."""


def failure(run: Run[Any]) -> str:
    with pytest.raises(RunFailed) as caught:
        run.result("90s")
    return str(caught.value)


@one_store("postgres")
def test_b7_every_deadline_is_stored_and_named(cluster: Cluster, overlap: Overlap):
    settings: dict[str, Any] = {"dispatch_deadline": "4s", **QUICK}
    first = cluster.server(**settings).ready()
    cluster.worker(STEPS_FILE, **KEPT).ready()
    client = cluster.client()
    client.limits.set_max_concurrent_runs(-1)
    client.limits.set_tag("lane", "one", limit=1)
    client.pools.set("shut", limit=-1)
    client.pools.pause("shut")
    gpu = {
        1: client.submit(steps.gpu_by_step, 1),
        2: client.submit(steps.gpu_by_flow, 2),
        3: client.submit(steps.gpu_by_default, 3, dispatch_deadline="3s"),
        4: client.submit(steps.gpu_by_default, 4),
    }
    late = client.submit(steps.gpu_by_default, 5, deadline="2s")
    stuck = client.submit(steps.pool_by_default, 6, queue_timeout="1h", tags={"lane": "one"})
    waits = client.submit(steps.gpu_by_default, 7, dispatch_deadline="1h")
    # the second of one: it waits for one that waits for an hour
    queued = client.submit(steps.single, 8, deadline="1s", tags={"lane": "one"})
    eventually(lambda: "gpu=a100" in str(waits.why()))
    eventually(lambda: "pool shut is paused" in str(stuck.why()))

    # the leader dies in the middle of it; its successor counts on
    assert CAPACITY.search(failure(gpu[1]))
    cluster.server(**settings).ready()
    first.kill()

    for seconds, run in gpu.items():
        found = CAPACITY.search(said := failure(run))
        assert found, said
        assert seconds <= float(found[1]) <= seconds + LATE_SECONDS
    assert late.wait("90s") == "timed_out"
    # Where it did not even start within two seconds, that is what it says.
    assert re.search("did not end within 2s|was still queued after 2s", failure(late))
    assert queued.wait("90s") == "timed_out"
    assert "deadline: the run was still queued after 1s" in failure(queued)
    assert (str(stuck.status()), str(waits.status())) == ("running", "running")
    stuck.cancel()
    waits.cancel()
    assert overlap.names() == []  # none of them was started


@one_store("sqlite")
def test_e5_queue_timeouts_name_the_gate(cluster: Cluster, overlap: Overlap):
    settings: dict[str, Any] = {"queue_timeout": "4s", **QUICK}
    first = cluster.server(**settings).ready()
    cluster.worker(STEPS_FILE, **KEPT).ready()
    client = cluster.client()
    client.pools.set("shut", limit=-1)
    client.pools.pause("shut")
    runs = {
        1: client.submit(steps.pool_by_step, 1),
        2: client.submit(steps.pool_by_flow, 2),
        3: client.submit(steps.pool_by_default, 3, queue_timeout="3s"),
        4: client.submit(steps.pool_by_default, 4),
    }
    waits = client.submit(steps.pool_by_default, 5, queue_timeout="1h")
    eventually(lambda: "pool shut is paused" in str(waits.why()))
    first.kill()
    cluster.server(**settings)

    for seconds, run in runs.items():
        found = QUEUED.search(said := failure(run))
        assert found, said
        assert int(found[2]) == seconds
        assert seconds <= float(found[1]) <= seconds + LATE_SECONDS
    waits.cancel()
    assert waits.wait("90s") == "cancelled"
    client.pools.resume("shut")
    assert overlap.names() == []
