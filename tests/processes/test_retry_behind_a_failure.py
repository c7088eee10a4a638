"""A retried run does everything that stood behind its failure, whoever leads, exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.sampled import one_store

from locktender import Client, Run, RunState, TaskState
from locktender.testing import eventually
from locktender.testing.fixtures import Engines
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "retry_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "60s"


def failed(client: Client, flow: Any, folder: Path) -> Run[Any]:
    run = client.submit(flow, str(folder))
    run.wait(TIMEOUT)
    assert run.status() is RunState.FAILED
    (folder / "mended").touch()
    return run


def states(run: Run[Any]) -> set[TaskState]:
    return {task.state for task in run.tasks()}


@one_store("sqlite")
def test_b9_a_step_behind_the_failure_runs_once_after_a_retry(cluster: Cluster, tmp_path: Path):
    client = cluster.client()
    client.pools.set("tenant", limit=1)
    cluster.server().ready()
    cluster.worker(STEPS_FILE).ready()
    run = failed(client, steps.chain, tmp_path)

    (tmp_path / "go").touch()
    run.retry()

    assert run.result(TIMEOUT) == 21
    assert steps.ran(tmp_path) == ["first", "first", "push"]
    assert states(run) == {TaskState.COMPLETED}
    assert client.pools.get("tenant").used == 0


@one_store("postgres")
def test_b9_it_runs_too_when_the_leader_is_killed_in_between(cluster: Cluster, tmp_path: Path):
    client = cluster.client()
    server = cluster.server().ready()
    cluster.worker(STEPS_FILE).ready()
    run = failed(client, steps.chain, tmp_path)
    run.retry()
    eventually(lambda: steps.ran(tmp_path) == ["first", "first"])

    server.kill()
    cluster.server().ready()
    (tmp_path / "go").touch()

    assert run.result(TIMEOUT) == 21
    assert steps.ran(tmp_path) == ["first", "first", "push"]
    assert states(run) == {TaskState.COMPLETED}


@pytest.mark.parametrize(("flow", "result"), [("chain", 21), ("mapped", [80, 84])])
def test_embedded_every_row_ends_completed(
    make_engine: Engines, tmp_path: Path, flow: str, result: object
):
    engine = make_engine()
    run = failed(engine, getattr(steps, flow), tmp_path)

    (tmp_path / "go").touch()
    run.retry()

    assert run.result(TIMEOUT) == result
    # The row of a map that was skipped before it had items is not needed any more.
    assert states(run) - {TaskState.SKIPPED} == {TaskState.COMPLETED}
    assert (TaskState.SKIPPED in states(run)) == (flow == "mapped")


def test_a_cancelled_retry_leaves_nothing_pending(make_engine: Engines, tmp_path: Path):
    engine = make_engine()
    run = failed(engine, steps.mapped, tmp_path)
    run.retry()
    eventually(lambda: steps.ran(tmp_path) == ["first", "first"])

    run.cancel()
    run.wait(TIMEOUT)

    assert run.status() is RunState.CANCELLED
    assert states(run) == {TaskState.CANCELLED, TaskState.SKIPPED}
    (tmp_path / "go").touch()
    run.retry()
    assert run.result(TIMEOUT) == [80, 84]


def test_what_a_clean_up_removed_is_made_again(make_engine: Engines, tmp_path: Path):
    engine = make_engine()
    run = failed(engine, steps.with_clean_up, tmp_path)

    run.retry()

    assert run.result(TIMEOUT) is True
    assert sorted(steps.ran(tmp_path)) == sorted(
        ["apart", *2 * ["make_scratch", "fill", "use", "remove"]]
    )
    assert not (tmp_path / "scratch").exists()
