"""What workers on Ray cost: worker-seconds against work ÷ permits, start-up and idle_exit of each.

    python -m bench.ray_cost        needs tests/support, one Ray cluster of two nodes on loopback

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
    from locktender.base.clock import SystemClock

    clock = SystemClock()
    ahead_us = clock.now() - clock.monotonic()
    joined = {
        int(event.data["worker"].split("-")[-2]): event.at - ahead_us
        for event in events
        if (event.subject, event.after) == ("worker", "joined")
    }
    lives = workers.spawned
    start_up = sum((joined[life.pid] - life.began_us) / 1e6 for life in lives)
    spent = sum(life.seconds for life in lives)
    work = TASKS * SECONDS / PERMITS
    idle = IDLE * len(lives)
    bound = 1.3 * work + start_up + idle
    print(f"workers {len(lives)}, at once {peak(lives)} of {WORKERS}")
    print(
        f"worker-seconds {spent:.1f}; work ÷ permits {work:.1f}; start-up {start_up:.1f}; idle_exit {idle:.1f}"
    )
    verdict = "kept" if spent <= bound else "NOT kept"
    print(f"bound {bound:.1f}: {verdict}; {(spent - start_up - idle) / work:.2f} × work")


if __name__ == "__main__":
    main()
