"""The graph of a run that executes becomes unreadable behind its leader's back: `why` says so, and it ends."""

from __future__ import annotations

import pytest
from tests.support.attack_faults import STEPS_FILE, steps
from tests.support.cluster import Cluster
from tests.support.fault_injector import Injector

from locktender import RunFailed
from locktender.base.errors import UnreadableRow
from locktender.testing import Overlap, eventually

pytest_plugins = ["locktender.testing.plugin"]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_no_worker_tries_it_without_end(cluster: Cluster, overlap: Overlap):
    cluster.server().ready()
    cluster.worker(STEPS_FILE).ready()
    client = cluster.client()
    client.pools.set("db", limit=1)
    client.pools.pause("db")
    run = client.submit(steps.victim(0), 1, 0.01)
    eventually(lambda: any(str(task.state) == "requested" for task in run.tasks()), "60s")
    injector = Injector(cluster.url)
    seq = injector.query("SELECT seq FROM {}run WHERE id = ?", run.id)[0][0]
    body = injector.value("graph", "body", seq)
    injector.write("graph", "body", seq, b'{"broken')
    try:
        assert "the stored graph cannot be read" in run.why().text()
        client.pools.resume("db")
        # Its step may be retried a million times.
        assert run.wait("60s") == "failed"
        with pytest.raises(RunFailed):
            run.result()
        for needs_it in (
            lambda: run.retry(from_step="first"),
            lambda: run.send("go", 1),
            run.graph,
        ):
            with pytest.raises(UnreadableRow, match=f"graph of run {run.id} cannot be read"):
                needs_it()
        assert overlap.names() == []
    finally:
        injector.write("graph", "body", seq, body)
    assert any("cannot be read" in task.error.message for task in run.tasks() if task.error)
