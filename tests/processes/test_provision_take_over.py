"""B6: `max_workers` holds at every instant, also when the leader that asked for workers is killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.cluster import Cluster, ClusterNode
from tests.support.fleet import ask
from tests.support.sampled import one_store
from tests.support.stopping import pause_outside_of_a_write

from locktender.testing import eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

FILE = Path(__file__).parents[1] / "steps" / "slow_start_steps.py"
flow: Any = load(source(FILE)).slow_to_start
WORKERS = 1
RECORDS, GO, DEAF = "TEST_RECORDS", "TEST_GO", "TEST_DEAF"

RECORDER = """
# Every worker process says that it begins, before it does anything else, and how many there are then:
# the number grows only by one that begins, and the last to write its line sees all the others.
import os
import sys


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def begin(path):
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)
    os.write(fd, f"begin {os.getpid()}\\n".encode())
    lines = os.pread(fd, 1 << 20, 0).decode().splitlines()
    begun = {int(line.split()[1]) for line in lines if line.startswith("begin")}
    os.write(fd, f"there {sum(map(lives, begun))}\\n".encode())
    os.close(fd)


if "worker" in sys.orig_argv[1:5] and os.environ.get("TEST_RECORDS"):
    begin(os.environ["TEST_RECORDS"])
"""


class Scene:
    def __init__(self, cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cluster = cluster
        self.records = folder / "records"
        self.go = folder / "go"
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(RECORDER)
        path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
        for name, value in (("PYTHONPATH", path), (RECORDS, self.records), (GO, self.go)):
            monkeypatch.setenv(name, str(value))

    def server(self, **settings: object) -> ClusterNode:
        return self._cluster.server(
            spawn=FILE,
            max_workers=WORKERS,
            total_permits=1,
            leader_lease="2s",
            leader_renew="500ms",
            provision_interval="100ms",
            start_timeout="20m",
            **settings,
        ).ready()

    def status(self, word: str) -> list[int]:
        lines = self.records.read_text().splitlines() if self.records.exists() else []
        return [int([*line.split(), "0"][1]) for line in lines if line.startswith(word)]


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(cluster, tmp_path, monkeypatch)


@one_store("sqlite")
def test_b6_a_starting_worker_that_dies_is_replaced(scene: Scene, cluster: Cluster):
    client = cluster.client()
    first = scene.server()
    runs = [client.submit(flow, n) for n in range(3)]
    eventually(lambda: len(scene.status("waits")) == 1, "60s", "a worker on its way")

    first.kill()
    scene.server()
    eventually(lambda: len(scene.status("begin")) == 2, "60s", "the next one")
    scene.go.touch()

    assert len({run.result("90s") for run in runs}) == 1
    assert scene.status("there") == [WORKERS, WORKERS]


@one_store("postgres")
def test_b6_a_starting_worker_is_counted_by_the_next_leader(
    scene: Scene, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(DEAF, "1")
    client = cluster.client()
    first = scene.server()
    runs = [client.submit(flow, n) for n in range(3)]
    eventually(lambda: len(scene.status("waits")) == 1, "60s", "a worker on its way")

    first.kill()
    # As on another machine: nothing but the store tells it of the worker.
    scene.server(work_dir=tmp_path / "elsewhere")
    says = "Provisioner: 1 of at most 1 worker is on its way."
    eventually(lambda: runs[0].why().note == says, "60s", "the next leader to count it")
    assert len(scene.status("begin")) == 1
    scene.go.touch()

    assert {run.result("90s") for run in runs} == set(scene.status("begin"))
    assert scene.status("there") == [WORKERS]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_who_leads_no_longer_still_reaps_what_it_started(scene: Scene, cluster: Cluster):
    scene.go.touch()
    client = cluster.client()
    first = scene.server()
    assert client.submit(flow, 1).result("90s") in scene.status("begin")
    [worker] = psutil.Process(first.pid).children()

    pause_outside_of_a_write(first, cluster.url)
    second = scene.server()
    eventually(lambda: second.pid in leaders(cluster), "60s", "another to lead")
    first.resume()
    # What it saw before it was stopped has been acted on by then.
    assert client.submit(flow, 2).result("90s") == worker.pid
    worker.terminate()

    eventually(lambda: not psutil.pid_exists(worker.pid), "60s", "it to end, and to be reaped")
    assert first.returncode is None
    assert psutil.Process(first.pid).children() == []


def leaders(cluster: Cluster) -> set[int]:
    """Who leads, by the process number in its name."""
    name = ask(cluster.url, lambda store: store.leader())
    return {int(part) for part in (name or "").split("-") if part.isdigit()}
