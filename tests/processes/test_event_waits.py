"""Events over processes that are killed: each is delivered once, and none is lost (G4, G5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.leases import KEPT, lapse

from locktender import RunState
from locktender.testing import Overlap, eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "wait_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "90s"


def test_g4_g5_events_over_killed_leaders_and_workers(cluster: Cluster, overlap: Overlap):
    server = cluster.server(**KEPT).ready()
    worker = cluster.worker(STEPS_FILE, **KEPT).ready()
    client = cluster.client()
    client.limits.set_max_concurrent_runs(1)
    runs = [client.submit(steps.approval, n) for n in range(6)]
    news = [client.submit(steps.told, n) for n in range(3)]
    for run in (*runs, *news):
        eventually(lambda run=run: run.status() is RunState.WAITING, 60)
    # nobody who waits keeps anybody from the only place
    assert client.submit(steps.note, 60).result(TIMEOUT) == 60
    for n, run in enumerate(runs):
        assert run.send("go", f"{n}-1", id="1")
    for node in (worker, server):
        node.kill()
        lapse(cluster.url, node)
    # while nobody leads
    for n, run in enumerate(runs):
        assert not run.send("go", "another", id="1")
        assert run.send("go", f"{n}-2", id="2")
    client.events.send("news", "for 1", match={"n": 1})
    client.events.send("news", "for all")
    cluster.server(**KEPT).ready()
    cluster.worker(STEPS_FILE, **KEPT).ready()
    assert [run.result(TIMEOUT) for run in runs] == [f"{n}-2" for n in range(6)]
    assert [run.result(TIMEOUT) for run in news] == ["for all", "for 1", "for all"]
    assert overlap.peak("answered") == 1
    mail = [event for run in runs for event in run.events() if event.subject == "mail"]
    assert [event.after for event in mail].count("delivered") == 12
