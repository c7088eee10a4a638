"""A machine whose clock is off by an hour: what is compared across processes is the store's time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.failover import (
    STEPS_FILE,
    Load,
    Watch,
    led,
    recorded_once,
    result,
    steps,
    works,
)
from tests.support.leases import KEPT, lapse

from locktender import RunState
from locktender.base.clock import SECOND, SystemClock
from locktender.testing import Overlap, eventually, load_history

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
# On SQLite all processes are of one machine, and have its one clock.
pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)
PROGRAM = str(Path(__file__).parents[1] / "support" / "clock_off.py")
HOUR = 3_600


# A worker whose clock is behind is in the next test, too.
@pytest.mark.parametrize("hours", [1, pytest.param(-1, marks=pytest.mark.long)])
def test_a_worker_and_a_leader_whose_clock_is_off(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, record_property: Any, hours: int
):
    """Leases, deadlines and pauses are kept; both are killed, and others take over."""
    client = cluster.client()
    off = (PROGRAM, str(hours * HOUR))
    leader = cluster.worker(STEPS_FILE, lead=True, program=off, **KEPT).ready()
    worker = cluster.worker(STEPS_FILE, program=off, **KEPT).ready()
    with Load(client) as load:
        eventually(lambda: len(load.runs) > 8)
        # A deadline is neither reached at once nor never.
        began = time.monotonic()
        late = client.submit(steps.hold, str(tmp_path / "never"), 1, deadline="1500ms", priority=9)
        eventually(lambda: late.status() == RunState.TIMED_OUT)
        assert time.monotonic() - began > 1
        right = [cluster.worker(STEPS_FILE, lead=True, **KEPT).ready() for _ in range(2)]
        worker.kill()
        leader.kill()
        lapse(cluster.url, worker, leader)
        watch = Watch()
        works(client)
        record_property("recovery", watch.until(lambda: True))
    load.check(overlap)
    told = load_history(cluster.url).events
    assert max(abs(event.at - SystemClock().now()) for event in told) < HOUR * SECOND // 2
    # Nobody took the lead from one who was alive.
    assert len(led(cluster.url)) == 2
    assert [each.returncode for each in right] == [None, None]
    recorded_once(cluster.url)


def test_a_worker_of_the_wrong_time_beside_one_of_the_right(cluster: Cluster, overlap: Overlap):
    """Neither is given up: their leases move on in the store's time, not in theirs."""
    client = cluster.client()
    cluster.server(**KEPT).ready()
    cluster.worker(STEPS_FILE, program=(PROGRAM, str(HOUR)), **KEPT).ready()
    cluster.worker(STEPS_FILE, program=(PROGRAM, str(-HOUR)), **KEPT).ready()
    with Load(client) as load:
        for _ in range(3):
            leases = {worker.id: worker.lease_until for worker in client.workers.list()}
            eventually(
                lambda before=leases: all(
                    worker.lease_until > before[worker.id] for worker in client.workers.list()
                )
            )
            seen = len(load.runs)
            eventually(lambda n=seen: len(load.runs) > n)
        assert [worker.alive for worker in client.workers.list()] == [True, True]
    load.check(overlap)
    assert result(client.submit(steps.light, [1])) == 2
    assert "abandoned" not in {event.after for event in load_history(cluster.url).events}
    recorded_once(cluster.url)
