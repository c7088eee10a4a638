"""B15: workers that end themselves, always gracefully; D6: a worker under pressure reports it at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, ClusterNode
from tests.support.sampled import one_store

from locktender import embedded
from locktender.testing import Overlap, eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "engine_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "90s"


def begun_by(start: Callable[[], ClusterNode], overlap: Overlap) -> ClusterNode:
    """The worker that has begun what waits. One that ends itself before it comes to it has a successor."""
    while True:
        worker = start().ready()
        eventually(lambda each=worker: "held" in overlap.names() or each.returncode is not None)
        if "held" in overlap.names():
            return worker


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_b15_an_idle_worker_ends_itself_and_a_busy_one_does_not(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    latch = tmp_path / "latch"
    client = cluster.client()
    cluster.server().ready()
    run = client.submit(steps.hold, str(latch), 7)
    worker = begun_by(lambda: cluster.worker(STEPS_FILE, idle_exit="1s"), overlap)
    idle = cluster.worker(STEPS_FILE, idle_exit="1s").ready()

    assert idle.wait() == 0  # the other has been busy for longer than that
    assert "idle for" in idle.log
    assert worker.returncode is None
    latch.touch()
    assert run.result(TIMEOUT) == 7
    assert worker.wait() == 0
    assert client.workers.list() == []


@pytest.mark.parametrize(
    ("setting", "said"), [({"max_lifetime": "1s"}, "lived"), ({"max_tasks": 12}, "ran ")]
)
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_b15_a_worker_recycles_itself_and_loses_nothing(
    cluster: Cluster, overlap: Overlap, setting: dict[str, Any], said: str
):
    """What it has in flight finishes; what was offered meanwhile goes elsewhere, without an attempt."""
    client = cluster.client()
    cluster.server().ready()
    first = cluster.worker(STEPS_FILE, async_permits=4, **setting).ready()
    run = client.submit(steps.many, list(range(60)), 0.05)

    assert first.wait() == 0
    assert said in first.log
    cluster.worker(STEPS_FILE).ready()

    assert run.result(TIMEOUT) == [2 * n for n in range(60)]
    assert {task.attempt for task in run.tasks()} == {1}
    if most := setting.get("max_tasks"):
        assert sum(span.pid == first.pid for span in overlap.spans("work")) == most


FLOWS = {"loop": steps.hold, "thread": steps.hold_in_thread, "process": steps.hold_in_process}
SAMPLE = {("loop", "max_tasks", True), ("thread", "max_lifetime", True)} | {
    ("process", "max_tasks", False),
    ("loop", "max_lifetime", False),
}
WAYS = [
    pytest.param(*way, marks=() if way in SAMPLE else pytest.mark.long)
    for way in itertools.product(FLOWS, ("max_tasks", "max_lifetime"), (True, False))
]


@pytest.mark.parametrize(("body", "setting", "lead"), WAYS)
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_b15_a_worker_that_ends_itself_waits_for_its_tasks(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, body: str, setting: str, *, lead: bool
):
    """Otherwise a long task is handed from one recycled worker to the next, and never ends."""
    latch = tmp_path / "latch"
    client = cluster.client()
    if not lead:
        cluster.server().ready()
    run = client.submit(FLOWS[body], str(latch), 7)
    bound: dict[str, Any] = {setting: {"max_tasks": 1, "max_lifetime": "2s"}[setting]}
    worker = begun_by(lambda: cluster.worker(STEPS_FILE, lead=lead, grace="0s", **bound), overlap)
    pids = [span.pid for span in overlap.spans("held")]
    eventually(lambda: "1 tasks may finish" in worker.log)
    # Its successor takes a while to come, and would be given what is handed back.
    cluster.worker(STEPS_FILE, lead=lead).ready()
    assert worker.returncode is None
    latch.touch()

    assert run.result(TIMEOUT) == 7
    assert worker.wait() == 0
    assert [span.pid for span in overlap.spans("held")] == pids


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_b15_a_signal_begins_the_grace_of_an_ending_worker(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    latch = tmp_path / "latch"
    client = cluster.client()
    cluster.server().ready()
    worker = cluster.worker(STEPS_FILE, grace="0s", max_tasks=1).ready()
    run = client.submit(steps.hold, str(latch), 7)
    eventually(lambda: "held" in overlap.names())
    eventually(lambda: "1 tasks may finish" in worker.log)

    worker.terminate()
    assert worker.wait() == 0
    assert "SIGTERM" in worker.log
    latch.touch()
    cluster.worker(STEPS_FILE).ready()
    assert run.result(TIMEOUT) == 7


@one_store("postgres")
def test_b15_a_leading_worker_runs_exactly_max_tasks(cluster: Cluster, overlap: Overlap):
    client = cluster.client()
    run = client.submit(steps.many, list(range(60)), 0.01)
    workers = [cluster.worker(STEPS_FILE, lead=True, max_tasks=most).ready() for most in (5, 25)]

    assert [worker.wait() for worker in workers] == [0, 0]
    assert [
        sum(span.pid == worker.pid for span in overlap.spans("work")) for worker in workers
    ] == [5, 25]
    cluster.worker(STEPS_FILE, lead=True).ready()
    assert run.result(TIMEOUT) == [2 * n for n in range(60)]
    assert {task.attempt for task in run.tasks()} == {1}


@one_store("sqlite")
def test_b15_a_worker_is_offered_no_more_tasks_than_it_may_begin(
    cluster: Cluster, overlap: Overlap
):
    """It would refuse the rest, and be offered them again, for as long as it takes to end."""
    client = cluster.client()
    cluster.server().ready()
    run = client.submit(steps.of_each_kind, list(range(8)), 0.3)
    most = [5, 9]
    workers = [cluster.worker(STEPS_FILE, max_tasks=each).ready() for each in most]

    assert [worker.wait() for worker in workers] == [0, 0]
    pids = [span.pid for span in overlap.spans("work")]
    assert [pids.count(worker.pid) for worker in workers] == most
    declined = [event.data for event in run.events() if event.after == "handed_back"]
    # None, but for beats that were on their way at the wrong moment: not the same ones all the time.
    assert len(declined) <= 5 * max(most), declined
    assert not any("the end of attempt" in worker.log for worker in workers)
    cluster.worker(STEPS_FILE).ready()
    assert run.result(TIMEOUT) == [[2 * n for n in range(8)]] * 3
    assert {task.attempt for task in run.tasks()} == {1}


def test_b15_nobody_ends_a_worker_in_a_program_of_the_users(tmp_path: Path):
    """So it does not count its tasks either: it would take no more, for ever."""
    with embedded(str(tmp_path / "locktender.db"), max_tasks=5, work_dir=str(tmp_path)) as engine:
        assert engine.submit(steps.many, list(range(20)), 0.0).result(TIMEOUT)[-1] == 38


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_d6_a_nearly_full_worker_says_so_before_its_next_beat(cluster: Cluster, tmp_path: Path):
    latch = tmp_path / "latch"
    client = cluster.client()
    client.limits.set_max_concurrent_runs(-1)
    cluster.server().ready()
    # One beat in the time of this test: whatever is told meanwhile was urgent.
    worker = cluster.worker(STEPS_FILE, async_permits=100, heartbeat="10m", worker_lease="1h")
    worker.ready()
    runs = [client.submit(steps.hold, str(latch), n) for n in range(120)]

    def full() -> list[str]:
        return [kind for each in client.workers.list() for kind in each.full]

    eventually(lambda: full() == ["async"])
    assert 90 < client.workers.list()[0].in_flight <= 100
    latch.touch()

    assert [run.result(TIMEOUT) for run in runs] == list(range(120))
    eventually(lambda: full() == [])


AT_EXIT = """
import atexit, gc
from pathlib import Path
from locktender import step

own = [[] for _ in range(10)]
frozen = gc.get_freeze_count()
collected = sum(each in gc.get_objects() for each in own)
atexit.register(Path(__file__).with_suffix(".txt").write_text, f"{frozen} {collected}")

@step
def nothing() -> None: ...
"""


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_worker_ends_without_collecting_what_is_not_user_code(cluster: Cluster, tmp_path: Path):
    """That took longer than everything else of its end; functions registered with atexit are called."""
    file = tmp_path / "at_exit.py"
    file.write_text(AT_EXIT)
    cluster.server().ready()
    assert cluster.worker(file, idle_exit="100ms").wait() == 0
    frozen, collected = map(int, file.with_suffix(".txt").read_text().split())
    assert frozen > 10_000
    assert collected == 10
