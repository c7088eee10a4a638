"""F4: runs that come one by one fill a worker to its last permit, on a server's worker and embedded."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.fleet import FILES, fleet

from locktender import Client, Run, embedded
from locktender.testing import Overlap, eventually
from locktender.testing.history import check_history

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

PERMITS = 100
TIMEOUT = "90s"


def fill(client: Client, overlap: Overlap, latch: Path) -> None:
    client.limits.set_max_concurrent_runs(-1)
    runs: list[Run[int]] = [
        client.submit(fleet.holding, str(latch), n, "held") for n in range(PERMITS)
    ]
    eventually(lambda: overlap.count("held") == PERMITS, timeout=90)
    latch.touch()
    assert [run.result(TIMEOUT) for run in runs] == list(range(PERMITS))
    assert overlap.peak("held") == PERMITS


def test_f4_runs_one_by_one_fill_a_workers_last_permits(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    cluster.server().ready()
    cluster.worker(*FILES, async_permits=PERMITS, heartbeat="500ms", worker_lease="10m").ready()
    fill(cluster.client(), overlap, tmp_path / "latch")


def test_f4_single_runs_fill_an_engines_last_permits(
    store_url: str, overlap: Overlap, tmp_path: Path
):
    with embedded(store_url, async_permits=PERMITS, work_dir=str(tmp_path)) as engine:
        fill(engine, overlap, tmp_path / "latch")
    check_history(store_url)
