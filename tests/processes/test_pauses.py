"""A pause holds over the death of the leader, on both stores, with workers in other processes."""

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

STEPS_FILE = Path(__file__).parents[1] / "steps" / "word_steps.py"
steps: Any = load(source(STEPS_FILE))


def test_paused_runs_stay_paused_when_the_leader_dies(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    server = cluster.server(**KEPT).ready()
    cluster.worker(STEPS_FILE, **KEPT).ready()
    client = cluster.client()
    client.limits.set_max_concurrent_runs(2)
    gate = tmp_path / "gate"
    run = client.submit(steps.through_a_file, str(gate), 1)
    by_flow = client.submit(steps.also_through_a_file, str(gate), 2)
    eventually(lambda: len(overlap.labels("file")) == 2)
    run.pause()
    client.flows.pause(steps.also_through_a_file.name)
    queued = client.submit(steps.also_through_a_file, str(gate), 3)
    eventually(lambda: any(event.subject == "pause" for event in by_flow.events()))
    server.kill()
    lapse(cluster.url, server)
    cluster.server(**KEPT).ready()
    gate.touch()
    # Both gave their places back: others pass.
    assert client.submit(steps.beside, 5).result("90s") == 6
    assert "after" not in overlap.names()
    assert run.status() is RunState.RUNNING
    assert "the run is paused by" in str(run.why())
    run.resume()
    assert run.result("90s") == 2
    assert (by_flow.status(), queued.status()) == (RunState.RUNNING, RunState.QUEUED)
    client.flows.resume(steps.also_through_a_file.name)
    assert (by_flow.result("90s"), queued.result("90s")) == (3, 4)
