"""B6: a provisioner of somebody's own that answers wrongly: real workers, and never more than `max_workers`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.lying_machines import LIE
from tests.processes.lives import Lives, peak

from locktender.testing import Overlap, eventually
from locktender.testing.cluster import Cluster
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

HERE = Path(__file__).parents[1]
steps: Any = load(source(HERE / "bounded_steps.py"))
WORKERS = 2
RUNS = 6
TOLD = {
    "capitals": "the state 'RUNNING', which is none of starting, running, ended, failed",
    "no names": "request() returned None where a list of names is due",
    "one name": "it granted a name that another worker has: image",
}


@pytest.fixture
def lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lives]:
    path = tmp_path / "lives.jsonl"
    monkeypatch.setenv(steps.LIVES, str(path))
    with Lives(path).watched() as watching:
        yield watching


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
@pytest.mark.parametrize("lie", TOLD)
def test_b6_a_lying_provisioner_gets_no_more_than_the_maximum(
    cluster: Cluster,
    overlap: Overlap,
    lives: Lives,
    lie: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv(LIE, lie)
    client = cluster.client()
    client.limits.set_max_concurrent_runs(-1)
    latch = tmp_path / "latch"
    runs = [client.submit(steps.prepared, n, str(latch)) for n in range(RUNS)]

    server = cluster.server(
        spawn=None,
        provisioner=f"{HERE / 'lying_machines.py'}:LyingMachines",
        max_workers=WORKERS,
        provision_interval="100ms",
        provision_cooldown="500ms",
        start_timeout="20m",
    ).ready()

    # all is done, by as many as there may be, and what is wrong is told
    eventually(lambda: TOLD[lie] in server.log, "60s", "it to be told")
    eventually(lambda: overlap.count("work") == WORKERS, "60s", "as many workers as there may be")
    latch.touch()
    assert [run.result("90s") for run in runs] == [2 * n for n in range(RUNS)]
    assert len(lives.spawned) >= WORKERS
    assert peak(lives.spawned) == WORKERS
    assert "Traceback" not in server.log
    assert server.close() == 0
    eventually(lambda: all(life.ended_us for life in lives.spawned), "60s", "all workers to end")
