"""D4 over processes: as long as there is work for all, no worker is left out, whoever leads.

How even the shares are is a matter of timing: `tests/kernel/test_simulated_spread.py` judges it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.cluster import Cluster, ClusterNode
from tests.support.fleet import FILES, TIMEOUT, Measured, ended, fleet, pids
from tests.support.sampled import on_stores

from locktender.testing import Overlap, eventually

pytest_plugins = [
    "locktender.testing.plugin",
    "locktender.testing.postgres",
    "tests.support.shared_cluster",
]

PERMITS = 16


def three(cluster: Cluster, *, leads: bool) -> list[ClusterNode]:
    """Three workers; `leads`: one of them leads, else a server does."""
    if leads:
        # Ready first, so that it is the one that leads.
        nodes = [cluster.worker(*FILES, lead=True, async_permits=PERMITS).ready()]
    else:
        cluster.server().ready()
        nodes = []
    more = [cluster.worker(*FILES, async_permits=PERMITS) for _ in range(3 - len(nodes))]
    return nodes + [node.ready() for node in more]


@on_stores("leads", {"leads": True, "server": False}, {("postgres", "leads"), ("sqlite", "server")})
def test_d4_every_worker_is_filled_and_again(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, leads: bool, measured: Measured
):
    """All are full at once and empty at once; one that could not say that it is empty would get nothing."""
    workers = three(cluster, leads=leads)
    client = cluster.client()
    client.limits.set_max_concurrent_runs(-1)
    for wave in range(2):
        name, latch = f"wave-{wave}", tmp_path / str(wave)
        calls = [(str(latch), n, name) for n in range(3 * PERMITS)]
        runs = client.submit_many(fleet.holding, calls)
        eventually(lambda name=name: overlap.count(name) == 3 * PERMITS)
        assert Counter(pids(overlap, name)) == {worker.pid: PERMITS for worker in workers}
        latch.touch()
        assert ended(runs) == {"succeeded"}

    seconds = [0.02] * 300
    assert client.submit(fleet.lengths, seconds, 3 * PERMITS).result(TIMEOUT) == seconds
    had = Counter(pids(overlap, "takes"))
    measured("shares", [had[worker.pid] for worker in workers])
    assert had.total() == len(seconds)
    assert overlap.peak("takes") <= 3 * PERMITS
