"""F1 over processes: a worker keeps its lease and answers no offer; its tasks are nobody's but the queue's."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, ClusterNode
from tests.support.leases import KEPT

from locktender import RunFailed
from locktender.testing import Overlap, eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "silent_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "90s"


@pytest.fixture
def latch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "silent"
    made.touch()
    monkeypatch.setenv("LOCKTENDER_TEST_SILENT", str(made))
    return made


def silence(node: ClusterNode, latch: Path) -> None:
    """Its engine stands still from here on, until the latch is gone; its lease is kept."""
    os.kill(node.pid, signal.SIGUSR2)
    eventually(latch.with_suffix(".blocked").exists, timeout=60)


def test_f1_a_silent_worker_is_replaced_by_a_new_one(
    cluster: Cluster, overlap: Overlap, latch: Path
):
    worker = cluster.worker(STEPS_FILE, **KEPT).ready()
    cluster.server(
        spawn=STEPS_FILE, offer_ttl="300ms", provision_interval="100ms", start_timeout="20m", **KEPT
    ).ready()
    client = cluster.client()
    [silent] = client.workers.list()
    silence(worker, latch)

    run = client.submit(steps.show, 1)
    said: set[str] = set()

    def ended() -> bool:
        said.add(str(run.why()))
        return str(run.status()) not in ("queued", "running")

    eventually(ended, timeout=90)
    assert run.result(TIMEOUT) == 1
    # before it was accepted nothing called it running
    offered = [text for text in said if f"offered to {silent.id}" in text]
    assert not any("shown running" in text for text in offered)
    [body] = overlap.spans("shown")
    assert body.pid != worker.pid
    [known] = [each for each in client.workers.list() if each.id == silent.id]
    assert known.alive
    assert known.unanswered >= 1
    latch.unlink()


def test_f1_the_dispatch_deadline_fires_while_the_lease_is_kept(
    cluster: Cluster, overlap: Overlap, latch: Path
):
    worker = cluster.worker(STEPS_FILE, **KEPT).ready()
    cluster.server(offer_ttl="300ms", **KEPT).ready()
    client = cluster.client()
    silence(worker, latch)
    waits = client.submit(steps.show, 2)
    eventually(lambda: "unanswered and is passed over" in str(waits.why()), timeout=60)
    # Only now: a busy leader may need longer than this deadline to know that nobody answers.
    lost = client.submit(steps.show, 1, dispatch_deadline="2s")
    with pytest.raises(RunFailed) as caught:
        lost.result(TIMEOUT)
    assert re.search(
        r"capacity: no worker with step \S+ for \S+ \(1 worker, 1 matching, 1 not answering,"
        r" \d+ offers? not accepted\)",
        str(caught.value),
    )
    # it answers again: what waited is run, and the rest was never started
    latch.unlink()
    assert waits.result(TIMEOUT) == 2
    assert overlap.labels("shown") == ["2"]
    [known] = client.workers.list()
    eventually(lambda: client.workers.get(known.id).unanswered == 0, timeout=60)


def test_f1_the_dispatch_deadline_ends_before_the_lease(cluster: Cluster, overlap: Overlap):
    """With a lease of ten minutes nobody knows that it is dead; on SQLite its lock tells."""
    worker = cluster.worker(STEPS_FILE, **KEPT).ready()
    cluster.server(**KEPT).ready()
    worker.kill()
    run = cluster.client().submit(steps.show, 1, dispatch_deadline="2s")
    with pytest.raises(RunFailed, match="capacity: no worker"):
        run.result(TIMEOUT)
    assert overlap.names() == []


def test_f1_a_body_that_blocks_the_loop_hides_no_task(
    cluster: Cluster, overlap: Overlap, latch: Path
):
    """The worker answers for its executor: the next task is not called running, and its deadline fires."""
    cluster.worker(STEPS_FILE, **KEPT).ready()
    cluster.server(offer_ttl="300ms", **KEPT).ready()
    client = cluster.client()
    blocker = client.submit(steps.block, str(latch))
    eventually(latch.with_suffix(".blocked").exists, timeout=60)
    lost = client.submit(steps.show, 1, dispatch_deadline="3s")
    with pytest.raises(RunFailed, match="capacity: no worker"):
        lost.result(TIMEOUT)
    latch.unlink()
    blocker.result(TIMEOUT)
    assert overlap.names() == []
