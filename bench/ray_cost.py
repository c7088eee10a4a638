"""What workers on Ray cost: worker-seconds against work ÷ permits, start-up and idle_exit of each.

    python -m bench.ray_cost        needs Ray and the root of the repository: a cluster of two nodes on loopback

The bound: worker-seconds ≤ 1.3 × work ÷ permits + start-up and idle_exit per worker.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.ray_cluster import ENVIRONMENT, RayCluster
from tests.support.worker_records import WorkerRecords, peak

from bench.report import Figure
from bench.worker_seconds import ProcessLife, Work, cost_figures
from locktender.base.clock import SECOND, SystemClock
from locktender.testing import Overlap, eventually, load_history
from locktender.testing.overlap import VARIABLE
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

STEPS = Path(__file__).parent / "ray_steps.py"
RECORDS = "LOCKTENDER_TEST_RECORDS"
WORKERS, PERMITS, TASKS, SECONDS, IDLE = 2, 4, 80, 1.0, 2.0


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="ray-cost-"))
    os.environ.update(ENVIRONMENT)
    os.environ[RECORDS] = str(folder / "workers.jsonl")
    os.environ[VARIABLE] = str(folder / "overlap")
    steps: Any = load(source(STEPS))
    overlap = Overlap(folder / "overlap")
    records = WorkerRecords(folder / "workers.jsonl")
    with RayCluster() as ray, records.watched() as workers:
        variables = {name: os.environ[name] for name in (RECORDS, VARIABLE)}
        for _ in range(2):
            ray.add(variables, num_cpus=1)
        cluster = Cluster(str(folder / "a.db"), folder, overlap)
        options = {
            "kind": "ray",
            "address": ray.address,
            "sources": [str(STEPS)],
            "settings": {"total_permits": PERMITS, "async_permits": PERMITS},
            "timeout": "120s",
        }
        server = cluster.server(
            elastic=json.dumps(options),
            max_workers=WORKERS,
            provisioned_idle_exit=f"{IDLE:.0f}s",
            provision_interval="100ms",
        ).ready()
        client = cluster.client()
        client.limits.set_max_concurrent_runs(-1)
        runs = [client.submit(steps.once, SECONDS) for _ in range(TASKS)]
        for run in runs:
            run.result("600s")
        eventually(lambda: all(life.ended_us for life in workers.spawned), "600s", "all to end")
        events = load_history(cluster.url).events
        server.close()
        cluster.close()
    _report(workers, events)


def _report(workers: WorkerRecords, events: Any) -> None:
    clock = SystemClock()
    ahead_us = clock.now() - clock.monotonic()
    lives = [
        ProcessLife(
            life.pid, (life.began_us + ahead_us) / SECOND, (life.ended_us + ahead_us) / SECOND
        )
        for life in workers.spawned
        if life.ended_us is not None
    ]
    at_once = peak(workers.spawned)
    found = [
        Figure(f"{TASKS} tasks of {SECONDS:.0f} s, workers of {PERMITS} permits: workers at once", at_once, "",
               f"≤ {WORKERS}", at_once <= WORKERS),
        Figure("… workers", len(lives), ""),
        *cost_figures(lives, events, Work(TASKS, SECONDS, PERMITS, IDLE)),
    ]  # fmt: skip
    for figure in found:
        print(figure.line())


if __name__ == "__main__":
    main()
