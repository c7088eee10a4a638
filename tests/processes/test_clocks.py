"""A machine whose clock is off by an hour: what is compared across processes is the store's time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.processes.scenes import (
    QUICK,
    STEPS_FILE,
    Load,
    Watch,
    led,
    recorded_once,
    result,
    steps,
    works,
)

from locktender import RunState
from locktender.base.clock import SECOND, SystemClock
from locktender.testing import Overlap, eventually, load_history
from locktender.testing.cluster import Cluster

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
# On SQLite all processes are of one machine, and have its one clock.
pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)
PROGRAM = str(Path(__file__).parent / "clock_off.py")
HOUR = 3_600


@pytest.mark.parametrize("hours", [1, -1])
def test_a_worker_and_a_leader_whose_clock_is_off(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, record_property: Any, hours: int
):
    """Leases, deadlines and pauses are kept; both are killed, and others take over in time."""
    client = cluster.client()
    off = (PROGRAM, str(hours * HOUR))
    leader = cluster.worker(STEPS_FILE, lead=True, program=off, **QUICK).ready()
    worker = cluster.worker(STEPS_FILE, program=off, **QUICK).ready()
    with Load(client) as load:
        eventually(lambda: len(load.runs) > 8)
        # A deadline is neither reached at once nor never.
        late = client.submit(steps.hold, str(tmp_path / "never"), 1, deadline="1500ms", priority=9)
        began = time.monotonic()
        eventually(lambda: late.status() == RunState.TIMED_OUT, "10s")
        assert time.monotonic() - began > 1
        right = [cluster.worker(STEPS_FILE, lead=True, **QUICK).ready() for _ in range(2)]
        worker.kill()
        leader.kill()
        watch = Watch()
        works(client)
        record_property("recovery", watch.until(lambda: True))
    load.check(overlap)
    told = load_history(cluster.url).events
    assert max(abs(event.at - SystemClock().now()) for event in told) < 120 * SECOND
    # Nobody took the lead from one who was alive.
    assert len(led(cluster.url)) == 2
    assert [each.returncode for each in right] == [None, None]
    recorded_once(cluster.url)


def test_a_worker_of_the_wrong_time_beside_one_of_the_right(cluster: Cluster, overlap: Overlap):
    """A whole lease long neither is given up."""
    client = cluster.client()
    cluster.server(**QUICK).ready()
    cluster.worker(STEPS_FILE, program=(PROGRAM, str(HOUR)), **QUICK).ready()
    cluster.worker(STEPS_FILE, program=(PROGRAM, str(-HOUR)), **QUICK).ready()
    end = time.monotonic() + 3
    with Load(client) as load:
        eventually(lambda: time.monotonic() > end)
        assert [worker.alive for worker in client.workers.list()] == [True, True]
    load.check(overlap)
    assert result(client.submit(steps.light, [1])) == 2
    assert "abandoned" not in {event.after for event in load_history(cluster.url).events}
    recorded_once(cluster.url)
