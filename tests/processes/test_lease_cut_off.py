"""B12 over processes: a worker that is cut off from the store stops its tasks before its lease ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.fleet import FILES, TIMEOUT, Measured, ask, joined, pids, steps
from tests.support.leases import lapse_worker
from tests.support.proxied import proxied

from locktender import Client, RunState
from locktender.testing import Overlap, eventually
from locktender.testing.overlap import alive

pytest_plugins = [
    "locktender.testing.plugin",
    "locktender.testing.postgres",
    "tests.support.shared_cluster",
]

APART = {"where": "apart"}
MARGIN_SECONDS = 80
LEASE: dict[str, Any] = {"worker_lease": "90s", "heartbeat": "500ms"}
_MAIN = "import sys; from locktender.cli.main import main; sys.exit(main())"
_STOP_AT = f"property(lambda self: self.ends_us - {MARGIN_SECONDS}_000_000)"
EARLY = (
    "-c",
    f"from locktender.worker import lease; lease.WorkerLease.stop_at_us = {_STOP_AT}; {_MAIN}",
)
"""A worker that stops what it runs long before its lease ends: time enough on a busy machine, too."""


def ids(client: Client, pid: int) -> list[str]:
    """Workers that live in one process: by their rows, the lost one may be there too."""
    return [worker.id for worker in client.workers.list() if worker.pid == pid]


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_b12_a_cut_off_worker_stops_before_its_lease_ends(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, measured: Measured
):
    """No connection breaks: nothing answers any more. One body of each kind is running."""
    cluster.server().ready()
    client = cluster.client()
    latch = tmp_path / "latch"
    with proxied(cluster.url, tmp_path / "proxy") as proxy:
        cut = cluster.worker(*FILES, labels=APART, url=proxy.url, program=EARLY, **LEASE).ready()
        name = joined(client, cut)
        run = client.submit(steps.apart, str(latch))
        eventually(lambda: overlap.count("apart") == 3)
        bodies = overlap.spans("apart")

        proxy.stalled = True
        eventually(lambda: overlap.levels("apart")[-1] == 0)

        # by the store's own clock the lease has not ended: nobody else can have begun
        left = (
            client.workers.get(name).lease_until.timestamp()
            - ask(cluster.url, lambda store: store.now()) / 1e6
        )
        measured("stopped_before_the_lease_ends_s", round(left, 2))
        assert left > 0
        assert overlap.count("apart") == 3
        stopped = {span.label: span for span in overlap.spans("apart")}
        assert stopped["async"].error == "CancelledError"
        assert stopped["thread"].finished  # it was asked, and saw it
        assert stopped["process"].ended_us is None
        assert not alive(stopped["process"].pid)

        lapse_worker(cluster.url, name)  # as if the rest of its time had passed
        other = cluster.worker(*FILES, labels=APART).ready()
        eventually(lambda: overlap.count("apart") == 6)
        proxy.stalled = False

        # It comes back as another: what it was is not believed any more.
        eventually(lambda: name not in (again := ids(client, cut.pid)) and again)
        latch.touch()
        assert run.result(TIMEOUT) == ["async", "thread", "process"]
        assert cut.close() == 0
    assert other.close() == 0
    assert run.wait(TIMEOUT) == RunState.SUCCEEDED
    assert {task.attempt for task in run.tasks()} == {2}
    after = [event.after for event in run.events() if event.subject == "task"]
    assert (after.count("abandoned"), after.count("completed")) == (3, 3)
    assert all(span.pid not in {each.pid for each in bodies} for span in overlap.spans("apart")[3:])
    assert overlap.peak("apart") == 3
    assert len(pids(overlap, "apart")) == 6
