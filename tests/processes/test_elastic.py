"""Bounded dispatch with workers of every engine: never too many, all of them gone at the end, whatever fails.

What is claimed of workers is measured on their processes (`worker_records.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.processes.test_worker_role import users
from tests.support.cluster import Cluster, ClusterNode
from tests.support.elastic import elastic_engine
from tests.support.leases import KEPT, lapse
from tests.support.roles import as_role, made_role
from tests.support.worker_records import WorkerRecords, peak

from locktender.store.postgres import PostgresPlace
from locktender.testing import Overlap, eventually
from locktender.testing.overlap import alive
from locktender.testing.postgres_server import run
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

STEPS_FILE = Path(__file__).parents[1] / "steps" / "bounded_steps.py"
steps: Any = load(source(STEPS_FILE))
WORKERS = 2
on_sqlite = pytest.mark.parametrize("store", ["sqlite"], indirect=True)


def engines(first: str, *others: str) -> pytest.MarkDecorator:
    """Each story with one engine in `make test`, with all in `make test-long`."""
    rest = [pytest.param(kind, marks=pytest.mark.long) for kind in others]
    return pytest.mark.parametrize("kind", [first, *rest])


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerRecords]:
    path = tmp_path / "workers.jsonl"
    monkeypatch.setenv(steps.RECORDS, str(path))
    with WorkerRecords(path).watched() as watching:
        yield watching


@pytest.fixture
def worker_url(cluster: Cluster) -> str:
    """Of the workers."""
    return cluster.url


@pytest.fixture
def engine(
    kind: str, workers: WorkerRecords, cluster: Cluster, worker_url: str, tmp_path: Path
) -> Iterator[Any]:
    """After `cluster`: its processes end first."""
    with elastic_engine(kind, tmp_path, worker_url) as found:
        yield found


def server(cluster: Cluster, engine: Any, **settings: Any) -> ClusterNode:
    given = {
        "max_workers": WORKERS,
        "async_permits": 1,
        "total_permits": 1,
        "provision_interval": "100ms",
        "provision_cooldown": "100ms",
        "provisioned_idle_exit": "1s",
        "start_timeout": "20m",
        **engine.flags(STEPS_FILE),
        **KEPT,
        **settings,
    }
    return cluster.server(**given).ready()


def all_ended(workers: WorkerRecords) -> bool:
    return bool(workers.spawned) and all(life.ended_us for life in workers.spawned)


@on_sqlite
@engines("kubernetes", "local", "command")
def test_b6_b8_workers_are_bounded_and_drain_to_zero(
    cluster: Cluster, engine: Any, overlap: Overlap, workers: WorkerRecords, tmp_path: Path
):
    latch = tmp_path / "latch"
    client = cluster.client()
    node = server(cluster, engine)
    runs = [client.submit(steps.prepared, n, str(latch)) for n in range(8)]
    eventually(lambda: overlap.levels("work")[-1] == WORKERS, "90s", "as many as may be")
    latch.touch()
    assert [run.result("90s") for run in runs] == [2 * n for n in range(8)]
    eventually(lambda: all_ended(workers), "90s", "all workers to end")

    assert Counter(overlap.labels("work")) == Counter(map(str, range(8)))
    assert (peak(workers.spawned), overlap.peak("work")) == (WORKERS, WORKERS)
    # and one comes back for one more
    assert client.submit(steps.prepared, 7, "").result("90s") == 14
    eventually(lambda: all_ended(workers), "90s", "that one to end")
    assert node.close() == 0
    assert client.workers.list() == []
    assert workers.left() == []


@on_sqlite
@engines("command", "kubernetes")
def test_b9_a_killed_leader_leaves_no_worker_uncounted(
    cluster: Cluster, engine: Any, overlap: Overlap, workers: WorkerRecords, tmp_path: Path
):
    """Its workers live on: its successor counts them, requests no more than are missing, and uses them."""
    latch = tmp_path / "latch"
    client = cluster.client()
    first = server(cluster, engine)
    runs = [client.submit(steps.prepared, n, str(latch)) for n in range(6)]
    eventually(lambda: overlap.levels("work")[-1] == WORKERS, "90s", "as many as may be")
    first.kill()
    lapse(cluster.url, first)
    second = server(cluster, engine)
    says = f"{WORKERS} of at most {WORKERS} workers are there, none is on its way"
    eventually(lambda: says in str(runs[-1].why()), "90s", "the next leader to count them")
    latch.touch()
    assert [run.result("90s") for run in runs] == [2 * n for n in range(6)]
    assert Counter(overlap.labels("work")) == Counter(map(str, range(6)))
    eventually(lambda: all_ended(workers), "90s", "all workers to end")
    assert peak(workers.spawned) == len(workers.spawned) == WORKERS
    assert second.close() == 0
    assert workers.left() == []


@on_sqlite
@engines("kubernetes", "command")
def test_b6_an_engine_that_vanishes_and_comes_back(
    cluster: Cluster, engine: Any, overlap: Overlap, workers: WorkerRecords, tmp_path: Path
):
    """No task fails, no worker is forgotten meanwhile, and none too many comes afterwards."""
    latch = tmp_path / "latch"
    client = cluster.client()
    engine.vanish()
    node = server(cluster, engine)
    runs = [client.submit(steps.prepared, n, str(latch)) for n in range(4)]
    eventually(lambda: "provisioner" in str(runs[0].why()).lower(), "90s", "it to be told")
    eventually(lambda: "failed" in (runs[0].why().note or ""), "90s", "the failure to be shown")
    assert workers.spawned == []

    engine.come_back()
    eventually(lambda: overlap.levels("work")[-1] == WORKERS, "90s", "as many as may be")
    engine.vanish()
    eventually(lambda: "failed to list" in (runs[-1].why().note or ""), "90s", "it to be missed")
    latch.touch()
    assert [run.result("90s") for run in runs] == [2 * n for n in range(4)]
    eventually(lambda: all_ended(workers), "90s", "all workers to end")
    engine.come_back()

    assert client.submit(steps.prepared, 4, "").result("90s") == 8
    eventually(lambda: all_ended(workers), "90s", "that one to end")
    assert peak(workers.spawned) == WORKERS
    assert Counter(overlap.labels("work")) == Counter(map(str, range(5)))
    assert node.close() == 0
    assert workers.left() == []


@on_sqlite
@engines("command", "kubernetes")
def test_b6_a_worker_that_joins_after_it_was_given_up_counts(
    cluster: Cluster, engine: Any, overlap: Overlap, workers: WorkerRecords, tmp_path: Path
):
    """The engine holds it for longer than `start_timeout`; it starts nevertheless, or another in its place."""
    client = cluster.client()
    engine.hold()
    node = server(cluster, engine, max_workers=1, start_timeout="11m")
    run = client.submit(steps.prepared, 1, "")
    eventually(lambda: engine.waiting() == 1, "90s", "a worker on its way")
    overdue(cluster.url)
    said = "did not join within start_timeout"
    eventually(lambda: said in (run.why().note or ""), "90s", "it to be given up")
    engine.let_go()
    assert run.result("90s") == 2
    eventually(lambda: all_ended(workers), "90s", "all workers to end")
    assert peak(workers.spawned) == 1
    assert node.close() == 0
    assert workers.left() == []


@on_sqlite
@engines("kubernetes", "command")
def test_one_task_per_worker(
    cluster: Cluster, engine: Any, overlap: Overlap, workers: WorkerRecords
):
    """`max_tasks = 1`: as many pods as tasks, each for one of them."""
    client = cluster.client()
    flags = json.loads(engine.flags(STEPS_FILE)["elastic"])
    flags["settings"]["max_tasks"] = 1
    # On a busy machine a short idle_exit could end a worker before its task: here only the task ends it.
    node = server(cluster, engine, elastic=json.dumps(flags), provisioned_idle_exit="10m")
    assert client.submit(steps.prepared, 1, "").result("90s") == 2
    eventually(lambda: all_ended(workers), "90s", "all workers to end")
    bodies = [*overlap.spans("prepare"), *overlap.spans("work")]
    assert len({span.pid for span in bodies}) == len(bodies) == len(workers.spawned) == 2
    assert peak(workers.spawned) <= WORKERS
    assert node.close() == 0


def overdue(url: str) -> None:
    """The time of every worker that was asked for and has not joined has passed."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(url, timeout=60, isolation_level=None)) as db:
        db.execute("UPDATE asked_worker SET expires_at = 1 WHERE joined_at = 0")


@on_sqlite
@engines("command", "kubernetes")
def test_b6_an_engine_that_hangs_does_not_hold_up_the_leader(
    cluster: Cluster, engine: Any, kind: str, workers: WorkerRecords
):
    """The leader goes on with what it has; when it ends, commands end too, with what they started."""
    client = cluster.client()
    engine.hang()
    node = server(cluster, engine)
    by_hand = cluster.worker(STEPS_FILE, total_permits=1, **KEPT).ready()
    runs = [client.submit(steps.prepared, n, "") for n in range(3)]
    eventually(lambda: engine.hung, "90s", "a call that hangs")
    assert [run.result("90s") for run in runs] == [0, 2, 4]
    assert by_hand.close() == 0
    assert node.close() == 0
    if kind == "command":
        assert [pid for pid in engine.hanging() if alive(pid)] == []
    assert workers.spawned == []


class TestWorkersOfALimitedRole:
    """Their url is a secret: in a Secret, or in a variable that the settings name; on no command line."""

    @pytest.fixture
    def role(self, postgres_url: str) -> Iterator[str]:
        making = made_role(postgres_url)
        with asyncio.Runner() as loop:
            yield loop.run(making.__aenter__())
            loop.run(making.__aexit__(None, None, None))

    @pytest.fixture
    def worker_url(self, role: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
        run(PostgresPlace(postgres_url).grant("worker", role, revokes=False))
        found = as_role(postgres_url, role)
        monkeypatch.setenv("WORKER_URL", found)
        return found

    @pytest.mark.parametrize("store", ["postgres"], indirect=True)
    @engines("kubernetes", "command")
    def test_they_have_no_other_rights(
        self,
        cluster: Cluster,
        engine: Any,
        role: str,
        kind: str,
        overlap: Overlap,
        workers: WorkerRecords,
        tmp_path: Path,
    ):
        latch = tmp_path / "latch"
        client = cluster.client()
        flags = json.loads(engine.flags(STEPS_FILE)["elastic"])
        if kind == "command":
            flags["worker_url"] = "env:WORKER_URL"
        node = server(cluster, engine, elastic=json.dumps(flags))
        runs = [client.submit(steps.prepared, n, str(latch)) for n in range(3)]
        eventually(lambda: overlap.levels("work")[-1] == WORKERS, "90s", "as many as may be")
        assert role in run(users(cluster.url))
        for span in overlap.spans("work"):  # held by the latch: they live
            worker = psutil.Process(span.pid)
            assert "secret" not in " ".join(worker.cmdline())
            assert f"{role}:secret@" in worker.environ()["LOCKTENDER_URL"]
        latch.touch()
        assert [each.result("90s") for each in runs] == [0, 2, 4]
        eventually(lambda: all_ended(workers), "90s", "all workers to end")
        assert peak(workers.spawned) == WORKERS
        assert node.close() == 0
        assert "permission denied" not in node.log
        # Nothing that the leader sent or logged has the password either.
        assert "secret@" not in node.log
        if kind == "kubernetes":
            assert "secret@" not in json.dumps(engine.cluster.created)
