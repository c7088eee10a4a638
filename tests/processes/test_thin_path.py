"""Submit → gate → offer → accept → complete, over processes that share nothing but the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster

from locktender.testing import Overlap, eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "engine_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "90s"


def test_two_workers_of_which_one_leads(cluster: Cluster, overlap: Overlap, tmp_path: Path):
    latch = tmp_path / "latch"
    client = cluster.client()
    client.pools.set("db", limit=3)
    client.pools.set("api", limit=4)
    leader = cluster.worker(STEPS_FILE, lead=True, async_permits=1).ready()
    eventually(lambda: any(worker.pid == leader.pid for worker in client.workers.list()))
    worker = cluster.worker(STEPS_FILE, async_permits=1).ready()

    runs = [client.submit(steps.light, list(range(10))) for _ in range(5)]

    assert {run.result(TIMEOUT) for run in runs} == {sum(range(1, 11))}
    assert overlap.peak("db") <= 3
    assert overlap.peak("api") <= 4
    both = {leader.pid, worker.pid}
    assert {span.pid for span in overlap.spans("db")} <= both
    # each has one permit: as long as both bodies run, they are in two processes
    held = [client.submit(steps.hold, str(latch), n) for n in range(2)]
    eventually(lambda: {span.pid for span in overlap.spans("held")} == both)
    latch.touch()
    assert [run.result(TIMEOUT) for run in held] == [0, 1]
    assert (worker.close(), leader.close()) == (0, 0)
