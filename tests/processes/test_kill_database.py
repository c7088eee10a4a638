"""The database dies, or ends every connection each second: nothing is lost, and all goes on by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes.database import Database, own_database
from tests.processes.scenes import (
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
from locktender.testing.cluster import Cluster

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
STORM_SECONDS = 30.0


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


@pytest.mark.slow
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_every_backend_is_ended_each_second(
    cluster: Cluster, overlap: Overlap, record_property: Any
):
    """With the leases of production: nobody loses one, no task is run again for it."""
    client = cluster.client()
    cluster.server().ready()
    nodes = [cluster.server(), *(cluster.worker(STEPS_FILE) for _ in range(2))]
    for node in nodes:
        node.ready()
    ended = 0
    with Load(client, every=0.2) as load:
        end = time.monotonic() + STORM_SECONDS
        while time.monotonic() < end:
            began = time.monotonic()
            ended += len(query(cluster.url, END_BACKENDS))
            eventually(lambda began=began: time.monotonic() >= began + 1.0)
        during = len(load.runs) - len(load.open)
        watch = Watch()
        works(client)
        record_property("recovery", watch.until(lambda: True))
    load.check(overlap)
    record_property("ended", ended)
    record_property("runs during", during)
    assert ended > 5 * STORM_SECONDS
    # It went on working, all through it.
    assert during > STORM_SECONDS / 2
    assert [node.returncode for node in nodes] == [None] * len(nodes)
    assert "abandoned" not in {event.after for event in load_history(cluster.url).events}
    recorded_once(cluster.url)
