"""Seed 001 from end to end with real processes: refuse beyond the ceiling, queue, start workers, drain to zero.

What is claimed of workers is measured on their processes (`worker_records.py`), what is
claimed of steps on the bodies' own records; neither asks the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, ClusterNode
from tests.support.leases import KEPT, lapse
from tests.support.sampled import one_store
from tests.support.worker_records import WorkerRecords, peak

from locktender import AdmissionRejected
from locktender.base.clock import SystemClock
from locktender.testing import Overlap, eventually, load_history
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "bounded_steps.py"
steps: Any = load(source(STEPS_FILE))
CLOCK = SystemClock()
CEILING = 15
WORKERS = 3
PERMITS = 1
IDLE_SECONDS = 2.0


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerRecords]:
    path = tmp_path / "workers.jsonl"
    monkeypatch.setenv(steps.RECORDS, str(path))
    with WorkerRecords(path).watched() as watching:
        yield watching


def spawning(cluster: Cluster, **settings: Any) -> ClusterNode:
    """A server that starts workers of one permit for what overflows."""
    return cluster.server(
        spawn=STEPS_FILE,
        max_workers=WORKERS,
        async_permits=PERMITS,
        total_permits=PERMITS,
        provision_interval="100ms",
        provisioned_idle_exit=f"{IDLE_SECONDS:.0f}s",
        start_timeout="20m",
        **settings,
    ).ready()


@one_store("sqlite")
def test_b4_b6_b8_b9_b15_bounded_dispatch_from_end_to_end(
    cluster: Cluster, overlap: Overlap, workers: WorkerRecords, tmp_path: Path, record_property: Any
):
    latch = str(tmp_path / "latch")
    client = cluster.client()
    client.limits.set_max_active(CEILING)
    client.limits.set_max_concurrent_runs(-1)
    server = cluster.server(**KEPT)
    by_hand = cluster.worker(STEPS_FILE, total_permits=PERMITS, **KEPT)
    for node in (server, by_hand):
        node.ready()

    # orphans: a worker dies in the middle of a body, and who leads dies with it
    runs = [client.submit(steps.prepared, n, latch, key=f"run-{n}") for n in range(CEILING - 1)]
    eventually(lambda: overlap.count("work") == 1)
    for node in (server, by_hand):
        overlap.kill(node.pid)
    for node in (server, by_hand):
        node.wait()
    lapse(cluster.url, server, by_hand)
    prepared = overlap.labels("prepare")
    [cut_off] = overlap.labels("work")
    # and a run that is accepted while nobody leads; the 16th is shed, and leaves nothing behind
    runs.append(client.submit(steps.prepared, CEILING - 1, latch, key="run-14"))
    with pytest.raises(AdmissionRejected) as rejected:
        client.submit(steps.prepared, 99, latch, key="run-99")
    assert 1 <= rejected.value.retry_after <= 3_600
    assert client.submit(steps.prepared, 3, latch, key="run-3").id == runs[3].id
    assert len(client.runs.list(limit=100)) == CEILING

    # the next that leads takes up what was left; with no worker all 15 wait, and say for what
    server = cluster.server(**KEPT).ready()
    for run in runs:
        eventually(lambda run=run: "no worker is connected" in str(run.why()))
    assert (overlap.count("work"), overlap.labels("prepare")) == (1, prepared)

    # it dies too; its successor has a provisioner, and nobody asks for anything again
    server.kill()
    lapse(cluster.url, server)
    server = spawning(cluster)
    # as many at once as there may be workers, each in a process of its own
    eventually(lambda: overlap.levels("work")[-1] == WORKERS)
    Path(latch).touch()
    assert [run.result("90s") for run in runs] == [2 * n for n in range(CEILING)]
    eventually(lambda: not client.workers.list(), "60s", "all workers to leave")
    eventually(lambda: all(life.ended_us for life in workers.spawned), "60s", "all workers to end")

    # no step that had finished ran again; the body that was cut off did, once
    assert Counter(overlap.labels("prepare")) == Counter(map(str, range(CEILING)))
    assert Counter(overlap.labels("work")) == Counter([*map(str, range(CEILING)), cut_off])
    # there never was a fourth, and nobody left before it was idle for as long as it was told to be
    assert (peak(workers.spawned), overlap.peak("work")) == (WORKERS, WORKERS)
    assert [tail for tail in tails(workers, overlap) if tail < IDLE_SECONDS] == []
    record_property("worker-seconds", round(sum(life.seconds for life in workers.spawned), 2))
    record_property(
        "of them start-up", [round(each, 2) for each in start_ups(workers, cluster.url)]
    )
    record_property("of them after the last body", [round(t, 2) for t in tails(workers, overlap)])

    # and it comes back for one more; then nothing is left of anybody
    assert client.submit(steps.prepared, 7, "").result("90s") == 14
    assert server.close() == 0
    assert client.workers.list() == []
    assert workers.left() == []


def start_ups(workers: WorkerRecords, url: str) -> list[float]:
    """Seconds from the beginning of each worker's process until it had joined, by the history."""
    ahead_us = CLOCK.now() - CLOCK.monotonic()  # the history is in the time of day, records are not
    joined = {
        int(event.data["worker"].split("-")[-2]): event.at - ahead_us
        for event in load_history(url).events
        if (event.subject, event.after) == ("worker", "joined")
    }
    return [(joined[life.pid] - life.began_us) / 1_000_000 for life in workers.spawned]


def tails(workers: WorkerRecords, overlap: Overlap) -> list[float]:
    """Seconds from the last body of each worker to its end, of those that had any."""
    bodies = [*overlap.spans("prepare"), *overlap.spans("work")]
    last = {span.pid: 0 for span in bodies}
    for span in bodies:
        last[span.pid] = max(last[span.pid], span.ended_us or 0)
    return [
        ((life.ended_us or 0) - last[life.pid]) / 1_000_000
        for life in workers.spawned
        if life.pid in last
    ]


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_b9_a_server_killed_with_busy_workers_is_taken_over(
    cluster: Cluster, overlap: Overlap, workers: WorkerRecords, tmp_path: Path
):
    """Some have ended, some run: those are held until it is dead."""
    latch = tmp_path / "latch"
    client = cluster.client()
    client.limits.set_max_concurrent_runs(-1)
    first = spawning(cluster, **KEPT)
    runs = [client.submit(steps.prepared, n, "") for n in range(3)]
    assert [run.result("90s") for run in runs] == [0, 2, 4]
    runs += [client.submit(steps.prepared, n, str(latch)) for n in range(3, 12)]
    eventually(lambda: overlap.levels("work")[-1] == WORKERS)
    first.kill()
    lapse(cluster.url, first)
    latch.touch()
    # its workers notice, finish what they run, and end: they are nobody's
    eventually(lambda: all(life.ended_us for life in workers.spawned), "60s", "the workers to end")
    finished = [span.label for span in overlap.spans("work") if span.finished]
    assert len(finished) < len(runs)

    second = spawning(cluster)

    assert [run.result("90s") for run in runs] == [2 * n for n in range(len(runs))]
    assert Counter(overlap.labels("prepare")) == Counter(map(str, range(len(runs))))
    assert [overlap.labels("work").count(label) for label in finished] == [1] * len(finished)
    assert overlap.peak("work") <= WORKERS
    assert peak(workers.spawned) <= WORKERS
    assert second.close() == 0
    assert workers.left() == []
