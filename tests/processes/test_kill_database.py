"""The database dies, or ends every connection, again and again: nothing is lost, and all goes on by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.database import Database, own_database
from tests.support.failover import (
    END_BACKENDS,
    QUICK,
    STEPS_FILE,
    Load,
    Watch,
    query,
    recorded_once,
    works,
)

from locktender.testing import Overlap, eventually, load_history

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
STORMS = 4


@pytest.fixture
def database() -> Iterator[Database]:
    with own_database() as database:
        yield database


def test_the_postmaster_is_killed_under_load(
    database: Database, overlap: Overlap, tmp_path: Path, record_property: Any
):
    """Twice: for less than the leases, and for longer than all of them."""
    cluster = Cluster(database.url, tmp_path, overlap, grace="5s", **QUICK)
    try:
        client = cluster.client()
        cluster.server().ready()
        workers = [cluster.worker(STEPS_FILE).ready() for _ in range(2)]
        slowest = 0.0
        with Load(client) as load:
            for dead_seconds in (0.0, 3.0):
                seen = len(load.runs)
                eventually(lambda seen=seen: len(load.runs) > seen + 5)
                database.kill()
                end = time.monotonic() + dead_seconds
                eventually(lambda end=end: time.monotonic() >= end)
                database.start()
                watch = Watch()
                works(client)
                slowest = max(slowest, watch.until(lambda: True))
        load.check(overlap, at_least=12)
        record_property("recovery", slowest)
        assert [worker.returncode for worker in workers] == [None, None]
        recorded_once(cluster.url)
    except BaseException:
        cluster.end()
        raise
    cluster.close()


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_every_backend_is_ended_again_and_again(
    cluster: Cluster, overlap: Overlap, record_property: Any
):
    """Nobody loses a lease for it, no task is run again; between two of them work goes on."""
    client = cluster.client()
    lease: dict[str, Any] = {"worker_lease": "60s", "heartbeat": "1s", "leader_lease": "60s"}
    cluster.server(**lease).ready()
    nodes = [cluster.server(**lease), *(cluster.worker(STEPS_FILE, **lease) for _ in range(2))]
    for node in nodes:
        node.ready()
    with Load(client) as load:
        for _ in range(STORMS):
            done = overlap.count("api")
            # Bodies may end while everybody still connects again after the last time.
            eventually(lambda: query(cluster.url, END_BACKENDS))
            eventually(lambda before=done: overlap.count("api") > before + 3)
        watch = Watch()
        works(client)
        record_property("recovery", watch.until(lambda: True))
    load.check(overlap)
    assert [node.returncode for node in nodes] == [None] * len(nodes)
    assert "abandoned" not in {event.after for event in load_history(cluster.url).events}
    recorded_once(cluster.url)
