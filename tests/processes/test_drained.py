"""A worker that is asked to end costs no attempt: however it ends, its tasks run elsewhere."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster, ClusterNode
from tests.support.leases import KEPT, lapse
from tests.support.sampled import on_stores, one_store

from locktender.client.namespaces import Run
from locktender.testing import eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
FILE = Path(__file__).parents[1] / "steps" / "stuck_steps.py"
steps: Any = load(source(FILE))
SHORT_LEASE: dict[str, Any] = {"worker_lease": "12s", "heartbeat": "500ms"}
MAX_ABANDONS = 3


def beats(folder: Path, node: ClusterNode) -> list[int]:
    """When its body said that it runs."""
    file = folder / f"beats-{node.pid}"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def ends(run: Run[Any]) -> list[str]:
    """How the attempts at its task ended."""
    told = (each for each in run.events() if each.subject == "task")
    return [each.after for each in told if each.before == "running"]


def one_after_the_other(folder: Path, nodes: list[ClusterNode]) -> bool:
    """Whether no body ran beside another: the pool has one slot."""
    ran = [beats(folder, node) for node in nodes]
    return all(before[-1] < after[0] for before, after in pairwise(ran))


@on_stores(
    "flow",
    {"in a thread": "sticking", "on the loop": "hogging"},
    {("postgres", "in a thread"), ("sqlite", "on the loop")},
)
def test_restarts_do_not_fail_a_task_that_outlasts_them(
    cluster: Cluster, tmp_path: Path, flow: str
) -> None:
    """Its process ends hard at the end of the grace; what its drain list names is handed back."""
    cluster.server().ready()
    engine = cluster.client()
    engine.pools.set("lone", limit=1)
    run = engine.submit(getattr(steps, flow), str(tmp_path))
    workers: list[ClusterNode] = []
    for _ in range(MAX_ABANDONS):
        worker = cluster.worker(FILE, grace="300ms", **KEPT).ready()
        workers.append(worker)
        eventually(lambda last=worker: beats(tmp_path, last))

        worker.terminate()

        assert worker.wait() == 75
        lapse(cluster.url, worker)
    last = cluster.worker(FILE, **KEPT).ready()
    eventually(lambda: beats(tmp_path, last))
    (tmp_path / "open").touch()

    assert run.result("90s") == last.pid
    assert ends(run) == ["handed_back"] * MAX_ABANDONS + ["completed"]
    assert one_after_the_other(tmp_path, [*workers, last])


def test_what_a_child_runs_is_handed_back_when_it_is_gone(cluster: Cluster, tmp_path: Path) -> None:
    """A child ends a moment after its worker: its task is handed back after that, and charged to nobody."""
    cluster.server().ready()
    engine = cluster.client()
    worker = cluster.worker(FILE, grace="300ms", **SHORT_LEASE).ready()
    apart = engine.submit(steps.parting, str(tmp_path))
    eventually(lambda: list(tmp_path.glob("beats-*")))
    held = engine.submit(steps.hogging, str(tmp_path))
    eventually(lambda: beats(tmp_path, worker))

    worker.terminate()

    assert worker.wait() == 75
    for run in (apart, held):
        eventually(lambda each=run: ends(each))
        [back] = [each for each in run.events() if each.after == "handed_back"]
        # By the worker itself where it could end the body first, else by the leader.
        assert str(back.data["reason"]).partition(",")[0] == "drain"
        run.cancel()


@one_store("postgres")
def test_a_worker_killed_in_its_grace_was_told_to_end(cluster: Cluster, tmp_path: Path) -> None:
    """A service manager's patience may be shorter than ours."""
    cluster.server().ready()
    engine = cluster.client()
    engine.pools.set("lone", limit=1)
    first = cluster.worker(FILE, grace="120s", **KEPT).ready()
    run = engine.submit(steps.sticking, str(tmp_path))
    eventually(lambda: beats(tmp_path, first))

    first.terminate()
    eventually(lambda: any(each.draining for each in engine.workers.list()))
    first.kill()
    lapse(cluster.url, first)

    eventually(lambda: ends(run))
    assert ends(run) == ["handed_back"]
    run.cancel()


@one_store("postgres")
def test_a_worker_that_nobody_told_to_end_abandons(cluster: Cluster, tmp_path: Path) -> None:
    """Also one that takes no more tasks because an operator said so: what it runs may finish."""
    cluster.server().ready()
    engine = cluster.client()
    engine.pools.set("lone", limit=1)
    first = cluster.worker(FILE, **KEPT).ready()
    run = engine.submit(steps.sticking, str(tmp_path))
    eventually(lambda: beats(tmp_path, first))

    engine.workers.drain(first.said["worker"])
    eventually(lambda: any(each.draining for each in engine.workers.list()))
    first.kill()
    lapse(cluster.url, first)

    eventually(lambda: ends(run))
    assert ends(run) == ["abandoned"]
    run.cancel()


@one_store("sqlite")
def test_what_ends_within_the_grace_has_ended(cluster: Cluster, tmp_path: Path) -> None:
    cluster.server().ready()
    engine = cluster.client()
    engine.pools.set("lone", limit=1)
    first = cluster.worker(FILE, grace="60s", **KEPT).ready()
    run = engine.submit(steps.sticking, str(tmp_path))
    eventually(lambda: beats(tmp_path, first))

    first.terminate()
    eventually(lambda: any(each.draining for each in engine.workers.list()))
    (tmp_path / "open").touch()

    assert run.result("90s") == first.pid
    assert first.wait() == 0
    assert ends(run) == ["completed"]
