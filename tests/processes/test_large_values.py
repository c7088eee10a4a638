"""Large values at `blob_url` between processes: a worker that cannot get one has its run held by the leader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.leases import KEPT

from locktender import RunState
from locktender.testing import eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
STEPS = Path(__file__).parents[1] / "steps" / "large_steps.py"
flows: Any = load(source(STEPS))
SIZE = 3_000_000


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_a_value_missing_at_a_worker_holds_the_run(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    values, latch = tmp_path / "values", tmp_path / "latch"
    monkeypatch.setenv("LOCKTENDER_BLOB_URL", f"file://{values}")
    monkeypatch.setenv("LOCKTENDER_MAX_VALUE", "10MB")
    client = cluster.client()
    server = cluster.server(**KEPT).ready()
    worker = cluster.worker(STEPS, **KEPT).ready()
    run = client.submit(flows.large, SIZE, str(latch))
    eventually(lambda: "completed" in str([task.state for task in run.tasks()]), "60s", "a value")
    [path] = [each for each in values.glob("??/*/*") if not each.name.startswith(".")]
    right = path.read_bytes()
    path.unlink()
    latch.touch()
    eventually(lambda: run.status() == RunState.HELD, "60s", "it to be held")
    assert "no blob" in run.why().text()
    assert client.submit(flows.whole, 10).result("60s") == "x" * 10
    eventually(lambda: "running" not in str([task.state for task in run.tasks()]), "60s", "its end")
    path.write_bytes(right)
    run.retry()
    assert run.result("60s") == SIZE
    assert worker.close() == 0
    assert server.close() == 0
