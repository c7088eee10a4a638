"""What an attempt logged is there when its worker was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.leases import KEPT, lapse

from locktender.testing import eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "live_log_steps.py"
steps: Any = load(source(STEPS_FILE))


def test_lines_of_a_killed_worker_are_kept(cluster: Cluster, tmp_path: Path):
    cluster.server(**KEPT).ready()
    worker = cluster.worker(STEPS_FILE, **KEPT).ready()
    client = cluster.client()
    run = client.submit(steps.by_loop, str(tmp_path), "x")
    eventually(lambda: [line.message for line in run.logs()] == ["first line, with x"])
    worker.kill()
    lapse(cluster.url, worker)
    (tmp_path / "gate").touch()
    cluster.worker(STEPS_FILE, **KEPT).ready()
    assert run.result("90s") == str(tmp_path)
    lines = [(line.attempt, line.message) for line in run.logs()]
    assert lines[0] == (1, "first line, with x")
    assert lines[1:] == [(2, "first line, with x"), (2, "last line")]
