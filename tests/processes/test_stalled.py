"""A body keeps the interpreter's lock for longer than the lease: its worker is stalled, not dead (F5)."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, ClusterNode
from tests.support.failover import result
from tests.support.leases import KEPT

from locktender import Client, Run
from locktender.testing import Overlap, eventually, load_history
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

FILE = Path(__file__).parents[1] / "steps" / "stall_steps.py"
steps: Any = load(source(FILE))
SHORT: dict[str, Any] = {"worker_lease": "4s", "heartbeat": "400ms"}
"""Passes while the test looks on. A healthy worker that is late by as much is stalled too, and goes on."""


class Stall:
    """A worker whose body keeps the interpreter's lock, and a run that waits for its slot beside a free worker."""

    def __init__(self, cluster: Cluster, overlap: Overlap, folder: Path, **settings: Any) -> None:
        self.server: ClusterNode = cluster.server(**settings).ready()
        self.client: Client = cluster.client()
        self.client.pools.set("gil", limit=1)
        self.worker: ClusterNode = cluster.worker(FILE, **SHORT).ready()
        self._fifo = folder / "fifo"
        os.mkfifo(self._fifo)
        self._line = os.open(self._fifo, os.O_RDWR)
        locks = [] if "://" in cluster.url else [f"{cluster.url}-{each}.lock" for each in "qw"]
        self.first: Run[str] = self.client.submit(steps.keeping, str(self._fifo), locks)
        eventually(lambda: "gil" in overlap.names() and overlap.count("gil") == 1)
        cluster.worker(FILE, **KEPT).ready()
        self.second: Run[str] = self.client.submit(steps.following)

    def stalled(self) -> bool:
        return any(w.stalled and w.pid == self.worker.pid for w in self.client.workers.list())

    def metrics(self) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.said['port']}/metrics") as page:
            return page.read()

    def end(self) -> None:
        os.write(self._line, b"!")


def happened(url: str) -> list[str]:
    return [event.after for event in load_history(url).events if event.subject == "worker"]


def test_f5_a_stalled_worker_keeps_its_slot_and_goes_on(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    stall = Stall(cluster, overlap, tmp_path)
    eventually(stall.stalled)
    eventually(lambda: "stalled" in happened(cluster.url))
    eventually(lambda: b"locktender_stalled_workers 1.0" in stall.metrics())
    eventually(lambda: "is stalled" in str(stall.first.why()))
    eventually(lambda: "on stalled worker" in str(stall.second.why()))
    stall.end()
    assert (result(stall.first), result(stall.second)) == ("kept", "next")
    assert overlap.peak("gil") == 1
    assert [task.attempt for task in stall.first.tasks()] == [1]
    eventually(
        lambda: happened(cluster.url).count("resumed") == happened(cluster.url).count("stalled")
    )
    assert "lost" not in happened(cluster.url)
    assert stall.worker.returncode is None


def test_f5_a_stalled_worker_that_dies_is_dead_at_once(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    stall = Stall(cluster, overlap, tmp_path)
    eventually(stall.stalled)
    stall.worker.kill()
    stall.end()
    assert result(stall.second) == "next"
    assert overlap.peak("gil") == 1
    assert "lost" in happened(cluster.url)


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
def test_f5_after_the_grace_it_is_dead_and_stops_when_it_wakes(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    stall = Stall(cluster, overlap, tmp_path, stall_grace="4s")
    assert result(stall.second) == "next"
    assert any(
        "stalled for longer than 4s" in str(event.data)
        for event in load_history(cluster.url).events
    )
    stall.end()
    eventually(lambda: "it was declared lost" in stall.worker.log)
    eventually(lambda: "at the same time" in stall.worker.log)
