"""A thread that does not end with the grace: its process does, and its task goes on elsewhere at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from locktender.testing import eventually
from locktender.testing.cluster import Cluster, ClusterNode
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
FILE = Path(__file__).parents[1] / "stuck_steps.py"
steps: Any = load(source(FILE))
LEASE = {"worker_lease": "10m", "heartbeat": "1s"}


def beats(folder: Path, node: ClusterNode) -> list[int]:
    """When its body said that it runs."""
    file = folder / f"beats-{node.pid}"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_what_a_thread_keeps_is_handed_back_when_its_process_is_gone(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.server().ready()
    engine = cluster.client()
    engine.pools.set("lone", limit=1)
    first = cluster.worker(FILE, grace="300ms", **LEASE).ready()
    run = engine.submit(steps.sticking, str(tmp_path))
    eventually(lambda: beats(tmp_path, first))
    second = cluster.worker(FILE, **LEASE).ready()

    first.terminate()
    assert first.wait() == 75

    eventually(lambda: beats(tmp_path, second))  # long before the lease of 10 minutes would end
    assert beats(tmp_path, first)[-1] < beats(tmp_path, second)[0]
    (tmp_path / "open").touch()
    assert run.result("90s") == second.pid
    assert [(each.before, each.after) for each in run.events() if each.subject == "task"][3:5] == [
        ("running", "handed_back"),
        ("handed_back", "requested"),
    ]
    assert first.pid not in [each.pid for each in engine.workers.list()]
