"""D4 over processes: of three equal workers the busiest has at most half as much again as the idlest.

Bodies of 20 ms are the hard case: handing a task over takes about as long as
running it, and the worker in the leader's process is handed its own at once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.processes.fleet import TIMEOUT, Measured

from locktender import Client
from locktender.testing.cluster import Cluster, ClusterNode
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = [
    "locktender.testing.plugin",
    "locktender.testing.postgres",
    "tests.processes.standing",
]

FILE = Path(__file__).parents[1] / "spread_steps.py"
steps: Any = load(source(FILE))
TASKS = 3_000
BODY_SECONDS = 0.02


def three(cluster: Cluster, *, beside_the_leader: bool, permits: int) -> list[ClusterNode]:
    """Three workers; `beside_the_leader`: one of them leads, else a server does."""
    if beside_the_leader:
        # Ready first, so that it is the one that leads.
        nodes = [cluster.worker(FILE, lead=True, async_permits=permits).ready()]
    else:
        cluster.server().ready()
        nodes = []
    more = [cluster.worker(FILE, async_permits=permits) for _ in range(3 - len(nodes))]
    return nodes + [node.ready() for node in more]


def shares(client: Client, seconds: float, count: int) -> Counter[int]:
    """How many tasks ran in each process."""
    went: list[int] = client.submit(steps.wheres, [seconds] * count).result(TIMEOUT)
    return Counter(went)


def ratio(had: Counter[int], workers: list[ClusterNode]) -> float:
    assert set(had) == {worker.pid for worker in workers}
    return max(had.values()) / min(had.values())


@pytest.mark.parametrize("permits", [100, 16, 0], ids=["default", "few", "unlimited"])
@pytest.mark.parametrize("beside_the_leader", [True, False], ids=["leads", "server"])
def test_d4_the_busiest_of_three_equal_workers(
    cluster: Cluster, store: str, beside_the_leader: bool, permits: int, measured: Measured
):
    workers = three(cluster, beside_the_leader=beside_the_leader, permits=permits)
    client = cluster.client()

    had = shares(client, BODY_SECONDS, TASKS)

    measured(f"{store}_{beside_the_leader}_{permits}", [had[worker.pid] for worker in workers])
    assert ratio(had, workers) <= 1.5


def test_d4_in_waves_that_fill_and_empty_every_worker(cluster: Cluster, measured: Measured):
    """All are full at once and empty at once; one that could not say that it is empty would get nothing."""
    workers = three(cluster, beside_the_leader=False, permits=100)
    client = cluster.client()
    for _ in range(4):
        had = shares(client, 0.15, 900)
        measured("wave", sorted(had.values()))
        assert ratio(had, workers) <= 1.5


@pytest.mark.parametrize(("permits", "tasks"), [(100, 900), (16, 60)], ids=["default", "few"])
def test_d4_in_jobs_that_are_soon_over(
    cluster: Cluster, permits: int, tasks: int, measured: Measured
):
    """Each by itself: what a worker had of the last one gives it no claim to more of the next."""
    workers = three(cluster, beside_the_leader=True, permits=permits)
    client = cluster.client()
    for _ in range(6):
        had = shares(client, BODY_SECONDS, tasks)
        measured("job", [had[worker.pid] for worker in workers])
        assert ratio(had, workers) <= 1.5
