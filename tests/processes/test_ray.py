"""Bounded dispatch with workers on a real Ray cluster of several nodes, on loopback.

What is claimed of workers is measured on their processes (`worker_records.py`), and what is
claimed of actors is what Ray says.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from tests.support.cluster import Cluster, ClusterNode
from tests.support.leases import KEPT, lapse
from tests.support.portable import only_linux
from tests.support.ray_cluster import ENVIRONMENT, RayCluster
from tests.support.worker_records import WorkerRecords, peak

from locktender.base.config import load as load_settings
from locktender.base.errors import LocktenderError
from locktender.provision.protocol import Provisioned
from locktender.provision.ray_workers import RayWorkers
from locktender.testing import Overlap, eventually
from locktender.testing.overlap import VARIABLE
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
pytestmark = [
    pytest.mark.timeout(
        600
    ),  # a cluster of Ray is a dozen processes: on a busy machine each starts late
    pytest.mark.parametrize("store", ["sqlite"], indirect=True),
]

STEPS = Path(__file__).parents[1] / "steps"
BOUNDED = STEPS / "bounded_steps.py"
bounded: Any = load(source(BOUNDED))
labelled: Any = load(source(STEPS / "ray_steps.py"))
late: Any = load(source(STEPS / "late_steps.py"))
T = TypeVar("T")
WORKERS = 2
PERMITS = {"total_permits": 1, "async_permits": 1, "grace": "5s"}


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    with RayCluster() as cluster:
        yield cluster


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerRecords]:
    path = tmp_path / "workers.jsonl"
    for name, value in {**ENVIRONMENT, bounded.RECORDS: str(path)}.items():
        monkeypatch.setenv(name, value)
    with WorkerRecords(path).watched() as watching:
        yield watching


class Scene:
    """A store whose server gets its workers from the Ray cluster."""

    def __init__(self, cluster: Cluster, ray: RayCluster, workers: WorkerRecords) -> None:
        self.cluster, self.ray, self.workers = cluster, ray, workers
        self.client = cluster.client()
        self.nodes: list[int] = []
        self.variables: dict[str, str] = {}
        self._runner = asyncio.Runner()
        settings = load_settings(overrides={"url": cluster.url})
        self._other = RayWorkers(**self.options())(settings)

    def node(self, **resources: Any) -> int:
        """A node for this test alone: its workers get the variables of the test."""
        names = (bounded.RECORDS, VARIABLE)
        variables = {**{name: os.environ[name] for name in names}, **self.variables}
        self.nodes.append(self.ray.add(variables, **{"num_cpus": 2, **resources}))
        return self.nodes[-1]

    def options(self, file: Path = BOUNDED) -> dict[str, Any]:
        return {
            "sources": [str(file)],
            "address": self.ray.address,
            "settings": PERMITS,
            "timeout": "60s",
        }

    def server(self, options: dict[str, Any] | None = None, **settings: Any) -> ClusterNode:
        given = {
            "max_workers": WORKERS,
            "provision_interval": "100ms",
            "provision_cooldown": "100ms",
            "provisioned_idle_exit": "1s",
            "start_timeout": "20m",
            **KEPT,
            **settings,
        }
        described = json.dumps({"kind": "ray", **(options or self.options())})
        return self.cluster.server(elastic=described, **given).ready()

    def listed(self) -> list[Provisioned]:
        """The workers that live, as another leader of this store would list them."""
        found = self._runner.run(self._other.list())
        return [each for each in found if each.state in ("starting", "running")]

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)

    def vanish(self) -> None:
        self.run(self._other.close())
        self.ray.vanish()
        self.nodes.clear()

    def ended(self) -> bool:
        return bool(self.workers.spawned) and all(life.ended_us for life in self.workers.spawned)

    def drained(self) -> None:
        eventually(self.ended, "120s", "all workers to end")
        eventually(lambda: self.listed() == [], "120s", "all actors to end")

    def left(self) -> list[str]:
        """What is left of the server and of all workers."""
        self.run(self._other.close())
        of_ray = ("ray::", "raylet", "/ray/", "default_worker")
        return [each for each in self.workers.left() if not any(word in each for word in of_ray)]

    def close(self) -> None:
        self.run(self._other.close())
        self._runner.close()
        for node in self.nodes:
            self.ray.remove(node)


@pytest.fixture
def scene(cluster: Cluster, ray: RayCluster, workers: WorkerRecords) -> Iterator[Scene]:
    found = Scene(cluster, ray, workers)
    yield found
    found.close()


@only_linux("/proc, where environments and memory of processes can be read")
def test_the_url_is_in_the_environment_of_the_worker_alone(scene: Scene, tmp_path: Path):
    """Not on a command line, in no file of Ray, and not in the memory of what keeps the cluster's state."""
    (tmp_path / "url").write_text(f"postgresql://limited:{PASSWORD}@127.0.0.1:1/none")
    scene.node()
    settings = load_settings(overrides={"url": scene.cluster.url})
    workers = RayWorkers(**scene.options(), worker_url=f"file:{tmp_path}/url")(settings)
    scene.run(workers.request(1, {}, "for a test", ["worker-0"]))
    eventually(lambda: holders("environ"), "300s", "a worker")
    assert [each for each in holders("environ") if "locktender worker" not in each] == []
    assert holders("cmdline") == []
    eventually(lambda: scene.run(workers.list())[0].state == "running", "120s", "it to be listed")
    keepers = [
        each
        for each in psutil.Process(scene.ray.owner).children(recursive=True)
        if each.name() in ("gcs_server", "raylet")
    ]
    assert len(keepers) == 3
    assert [each.name() for each in keepers if b"worker-0" in memory_of(each.pid)]
    assert [each.name() for each in keepers if PASSWORD.encode() in memory_of(each.pid)] == []
    scene.run(workers.release("worker-0"))
    eventually(lambda: scene.run(workers.list())[0].released, "120s", "it to end")
    eventually(lambda: not holders("environ"), "120s", "its process to end")
    scene.run(workers.close())
    files = [path for path in Path(scene.ray.folder).rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


def test_a_cluster_that_hangs_is_asked_again(scene: Scene):
    """A call ends with its time, and the process that made it; the next one has another."""
    settings = load_settings(overrides={"url": scene.cluster.url})
    slow = RayWorkers(**{**scene.options(), "timeout": "60s"})(settings)
    quick = RayWorkers(**{**scene.options(), "timeout": "3s"})(settings)
    assert scene.run(slow.list()) == []
    head = psutil.Process(scene.ray.owner)
    [gcs] = [each for each in head.children() if "gcs_server" in each.name()]
    gcs.suspend()
    try:
        with pytest.raises(LocktenderError, match="failed to connect"):
            scene.run(quick.list())
    finally:
        gcs.resume()
    assert scene.run(slow.list()) == []
    scene.run(slow.close())
    scene.run(quick.close())
    assert scene.left() == []


PASSWORD = "wv8Kq2limited"


def memory_of(pid: int) -> bytes:
    """What a process below this one has written in its memory."""
    found = bytearray()
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            start, end = (int(each, 16) for each in place.split("-"))
            if rights.startswith("rw") and end - start < 256 << 20 and "/dev/shm" not in line:
                with suppress(OSError):
                    memory.seek(start)
                    found += memory.read(end - start)
    return bytes(found)


def holders(what: str, secret: str = PASSWORD) -> list[str]:
    """The command lines of processes that have the password in their command line or environment."""
    found: list[str] = []
    for each in psutil.process_iter():
        try:
            text = Path(f"/proc/{each.pid}/{what}").read_text(errors="replace")
            if secret in text and each.pid != os.getpid():
                found.append(" ".join(each.cmdline()))
        except (psutil.Error, OSError):  # it has ended meanwhile
            continue
    return found


@pytest.mark.long
def test_labels_become_resources_of_the_nodes(scene: Scene):
    scene.node(num_gpus=1)
    scene.node(resources={"zone:eu": 1, "disk": 4})
    scene.server(scene.options(STEPS / "ray_steps.py"))
    large = scene.client.submit(labelled.large)
    assert scene.client.submit(labelled.gpu).result("120s").startswith("worker-")
    assert scene.client.submit(labelled.zone).result("120s").startswith("worker-")
    says = "the provisioner has no worker for step"
    eventually(lambda: says in str(large.why()), "120s", "that no node has 8 GPUs")
    large.cancel()


def test_b6_b8_b9_workers_are_bounded_when_nodes_die(
    scene: Scene, overlap: Overlap, workers: WorkerRecords, tmp_path: Path
):
    """Never more than may be, no actor and no process left at the end."""
    latch = tmp_path / "latch"
    doomed = scene.node(num_cpus=1)
    scene.node(num_cpus=1)
    first = scene.server()
    runs = [scene.client.submit(bounded.prepared, n, str(latch)) for n in range(5)]
    eventually(lambda: overlap.levels("work")[-1] == WORKERS, "120s", "as many as may be")

    # The leader dies: its workers live on, and its successor counts them.
    first.kill()
    lapse(scene.cluster.url, first)
    second = scene.server()
    says = f"{WORKERS} of at most {WORKERS} workers are there"
    eventually(lambda: says in str(runs[-1].why()), "120s", "the next leader to count them")
    assert len(workers.spawned) == WORKERS

    # A raylet dies, and its worker with it; there is room on one more node.
    mark_killed(overlap, workers, doomed)
    scene.nodes.remove(doomed)
    scene.ray.remove(doomed)
    scene.node(num_cpus=1)
    eventually(lambda: overlap.levels("work")[-1] == WORKERS, "120s", "another in its place")
    latch.touch()
    assert [run.result("120s") for run in runs] == [2 * n for n in range(5)]
    scene.drained()
    assert (peak(workers.spawned), overlap.peak("work")) == (WORKERS, WORKERS)
    again = {label for label, n in Counter(overlap.labels("work")).items() if n > 1}
    assert len(again) == 1, "only the body on the dead node ran again"
    assert second.close() == 0
    assert scene.left() == []


def mark_killed(overlap: Overlap, workers: WorkerRecords, raylet: int) -> None:
    """Kills the workers below this raylet, as a machine that is switched off would."""
    below = {each.pid for each in psutil.Process(raylet).children(recursive=True)}
    for life in workers.spawned:
        if life.pid in below:
            overlap.kill(life.pid)


def test_b6_a_cluster_that_vanishes_and_comes_back(
    scene: Scene, overlap: Overlap, workers: WorkerRecords
):
    scene.node()
    server = scene.server()
    assert scene.client.submit(bounded.prepared, 1, "").result("120s") == 2
    scene.drained()
    scene.vanish()
    run = scene.client.submit(bounded.prepared, 2, "")
    says = "failed to list workers"
    eventually(lambda: says in (run.why().note or ""), "120s", "the failure to be shown")
    scene.ray.begin(scene.ray.port)
    scene.node()
    assert run.result("120s") == 4
    scene.drained()
    assert peak(workers.spawned) == 1
    assert server.close() == 0
    assert scene.left() == []


@pytest.mark.long
def test_b6_a_worker_that_was_given_up_counts_until_it_is_gone(
    scene: Scene, workers: WorkerRecords, tmp_path: Path
):
    """One waits for room and is taken back. One starts, and is deaf: another comes only when it is gone."""
    go = tmp_path / "go"
    scene.variables = {"TEST_GO": str(go)}
    options = scene.options(STEPS / "late_steps.py") | {"autoscales": True}
    server = scene.server(options, max_workers=1, start_timeout="11m")
    run = scene.client.submit(late.late, 1)
    eventually(lambda: starting(scene) == 1, "120s", "an actor without a node")
    overdue(scene.cluster.url)
    said = "did not join within start_timeout"
    eventually(lambda: said in (run.why().note or ""), "120s", "it to be given up")

    scene.node()
    eventually(lambda: len(workers.spawned) == 1, "120s", "a worker that starts")
    overdue(scene.cluster.url)
    go.touch()
    assert run.result("120s") == 2
    scene.drained()
    assert peak(workers.spawned) == 1
    assert server.close() == 0
    assert scene.left() == []


def starting(scene: Scene) -> int:
    return sum(each.state == "starting" for each in scene.listed())


def overdue(url: str) -> None:
    """The time of every worker that was asked for and has not joined has passed."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(url, timeout=60, isolation_level=None)) as db:
        db.execute("UPDATE asked_worker SET expires_at = 1 WHERE joined_at = 0")


@pytest.mark.long
def test_a_leader_that_has_not_listed_a_worker_drains_it(
    scene: Scene, overlap: Overlap, workers: WorkerRecords, tmp_path: Path
):
    """It counts until its body has ended: to kill its actor would free its place before."""
    latch = tmp_path / "latch"
    scene.node()
    server = scene.server({**scene.options(), "settings": {**PERMITS, "grace": "10m"}})
    runs = [scene.client.submit(bounded.prepared, n, str(latch)) for n in range(2)]
    eventually(lambda: overlap.levels("work")[-1] == WORKERS, "120s", "as many as may be")
    settings = load_settings(overrides={"url": scene.cluster.url})
    successor = RayWorkers(**scene.options())(settings)
    scene.run(successor.release(workers.spawned[0].provision))
    eventually(
        lambda: sorted(each.released for each in scene.listed()) == [False, True],
        "120s",
        "it to be released, and listed",
    )
    scene.run(successor.close())
    latch.touch()
    assert [run.result("120s") for run in runs] == [0, 2]
    scene.drained()
    assert (peak(workers.spawned), overlap.peak("work")) == (WORKERS, WORKERS)
    assert Counter(overlap.labels("work")) == Counter(map(str, range(2)))
    assert server.close() == 0
    assert scene.left() == []
