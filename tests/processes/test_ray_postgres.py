"""Workers on Ray with PostgreSQL: they have the limited role, whose url is a secret; one of them joins late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.processes.test_ray import (
    BOUNDED,
    PERMITS,
    STEPS,
    WORKERS,
    Scene,
    bounded,
    holders,
    late,
    memory_of,
    ray,
    scene,
    workers,
)
from tests.support.roles import as_role, made_role
from tests.support.worker_records import WorkerRecords, peak

from locktender.store.postgres import PostgresPlace
from locktender.testing import Overlap, eventually, load_history
from locktender.testing.postgres_server import execute, run

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("store", ["postgres"], indirect=True),
]
__all__ = ["ray", "scene", "workers"]  # fixtures


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    making = made_role(postgres_url)
    with asyncio.Runner() as loop:
        yield loop.run(making.__aenter__())
        loop.run(making.__aexit__(None, None, None))


@pytest.fixture
def limited(role: str, postgres_url: str, tmp_path: Path) -> dict[str, Any]:
    """Options of the provisioner: the url of the role is in a file."""
    run(PostgresPlace(postgres_url).grant("worker", role, revokes=False))
    (tmp_path / "worker-url").write_text(as_role(postgres_url, role))
    return {"worker_url": f"file:{tmp_path}/worker-url"}


def test_workers_on_ray_have_the_limited_role(
    scene: Scene,
    limited: dict[str, Any],
    role: str,
    overlap: Overlap,
    workers: WorkerRecords,
    tmp_path: Path,
):
    """Its url is in the environment of the workers: on no command line, and nowhere in Ray."""
    latch, secret = tmp_path / "latch", f"{role}:secret@"
    scene.node()
    server = scene.server(scene.options(BOUNDED) | limited)
    runs = [scene.client.submit(bounded.prepared, n, str(latch)) for n in range(4)]
    eventually(lambda: overlap.levels("work")[-1] == WORKERS, "120s", "as many as may be")

    assert len(holders("environ", secret)) == WORKERS
    assert [each for each in holders("environ", secret) if "locktender worker" not in each] == []
    assert holders("cmdline", secret) == []
    keepers = [
        each
        for each in psutil.Process(scene.ray.owner).children(recursive=True)
        if each.name() in ("gcs_server", "raylet")
    ]
    names = [life.provision.encode() for life in workers.spawned]
    assert any(names[0] in memory_of(each.pid) for each in keepers)
    assert [each.name() for each in keepers if secret.encode() in memory_of(each.pid)] == []

    latch.touch()
    assert [each.result("120s") for each in runs] == [0, 2, 4, 6]
    scene.drained()
    assert (peak(workers.spawned), overlap.peak("work")) == (WORKERS, WORKERS)
    assert server.close() == 0
    assert "permission denied" not in server.log
    assert "secret@" not in server.log
    files = [path for path in Path(scene.ray.folder).rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert scene.left() == []


def test_b6_a_worker_on_ray_that_joins_after_it_was_given_up(
    scene: Scene, limited: dict[str, Any], workers: WorkerRecords, tmp_path: Path
):
    """It is released and does not hear it. It counts all the time, joins, and is used; none comes beside it."""
    go = tmp_path / "go"
    scene.variables = {"TEST_GO": str(go)}
    options = scene.options(STEPS / "late_steps.py") | limited
    options["settings"] = PERMITS | {"grace": "10m"}  # it is not killed meanwhile
    scene.node()
    server = scene.server(options, max_workers=1, start_timeout="11m")
    asked = scene.client.submit(late.late, 1)
    eventually(lambda: len(workers.spawned) == 1, "120s", "a worker that starts")
    run(execute(scene.cluster.url, "UPDATE locktender.asked_worker SET expires_at = 1"))
    said = "did not join within start_timeout"
    eventually(lambda: said in (asked.why().note or ""), "120s", "it to be given up")
    eventually(lambda: [each.released for each in scene.listed()] == [True], "120s", "its release")
    assert "1 released and not gone yet" in str(asked.why())
    go.touch()
    assert asked.result("120s") == 2
    scene.drained()
    joined = [
        event.data["worker"]
        for event in load_history(scene.cluster.url).events
        if (event.subject, event.after) == ("worker", "joined")
    ]
    assert any(f"-{workers.spawned[0].pid}-" in each for each in joined)
    assert (len(workers.spawned), peak(workers.spawned)) == (1, 1)
    assert server.close() == 0
    assert scene.left() == []
