"""F2 over processes: runs that no connected worker can run leave the run gate to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.leases import KEPT, lapse

from locktender.testing import Overlap, eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "place_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "90s"


def test_f2_ten_runs_without_a_worker_block_no_other(cluster: Cluster, overlap: Overlap):
    server = cluster.server(**KEPT).ready()
    cluster.worker(STEPS_FILE, **KEPT).ready()
    client = cluster.client()
    client.limits.set_max_concurrent_runs(10)
    client.limits.set_tag("team", "red", limit=1)
    stranded = [client.submit(steps.needs_gpu, n, tags={"team": "red"}) for n in range(12)]
    assert client.submit(steps.anywhere, 1, tags={"team": "red"}).result(TIMEOUT) == 1
    eventually(lambda: "gpu=a100" in str(stranded[-1].why()), timeout=60)
    assert "runs execute" not in str(stranded[-1].why())

    # the next leader knows who has no place: with the worker they come back one by one
    server.kill()
    lapse(cluster.url, server)
    cluster.server(**KEPT).ready()
    assert client.submit(steps.anywhere, 2, tags={"team": "red"}).result(TIMEOUT) == 2
    cluster.worker(STEPS_FILE, labels={"gpu": "a100"}, **KEPT).ready()
    assert [run.result(TIMEOUT) for run in stranded] == list(range(12))
    assert overlap.peak("gpu") == 1
