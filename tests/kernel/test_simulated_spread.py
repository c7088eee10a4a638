"""D4: of three equal workers the busiest has at most half as much again as the idlest.

Simulated, so that it is the same on every machine: a virtual clock, messages that take a while, and
bodies of 20 ms. Those are the hard case: handing a task over takes about as long as running it, and
the worker in the leader's process is handed its own at once.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.worlds import graph, items, numbers

from locktender.base.clock import MILLISECOND
from locktender.simulate.model import Behaviour
from locktender.simulate.world import SimWorld

BODY_US = 20 * MILLISECOND
LATENCY_US = 15 * MILLISECOND
"""Of one message: an offer and its answer take longer than a body."""
WORKERS = ("a", "b", "c")
MOST = 1.5


def three(permits: int, *, leads: bool, seed: int = 4, body_us: int = BODY_US) -> SimWorld:
    """Three equal workers; `leads`: one of them is in the leader's process, else none is."""

    def duration(chance: object, _node: object) -> int:
        return world.random.randrange(body_us * 9 // 10, body_us * 11 // 10)

    world = SimWorld(seed, Behaviour(duration, latency=LATENCY_US))
    for name in WORKERS:
        world.add_worker(name, {"async": permits}, local=leads and name == "a")
    world.lead()
    return world


def shares(world: SimWorld, tasks: int) -> Counter[str]:
    """How many bodies of a job each worker ran."""
    before = len(world.bodies)
    world.submit(graph(items("download")), consts=numbers(tasks))
    world.run()
    had = Counter(body.worker for body in world.bodies[before:])
    assert had.total() == tasks
    return had


def ratio(had: Counter[str]) -> float:
    assert set(had) == set(WORKERS), had
    return max(had.values()) / min(had.values())


@pytest.mark.parametrize(
    "permits", [1_000, 100, 16, -1], ids=["default", "hundred", "few", "unlimited"]
)
@pytest.mark.parametrize("leads", [True, False], ids=["leads", "server"])
def test_d4_the_busiest_of_three_equal_workers(leads: bool, permits: int):
    assert ratio(shares(three(permits, leads=leads), 3_000)) <= MOST


def test_d4_in_waves_that_fill_and_empty_every_worker():
    """All are full at once and empty at once; none is forgotten in the next wave."""
    world = three(100, leads=False, body_us=150 * MILLISECOND)
    for _ in range(4):
        assert ratio(shares(world, 900)) <= MOST


@pytest.mark.parametrize(
    ("permits", "tasks"), [(1_000, 9_000), (100, 900), (16, 60)], ids=["default", "hundred", "few"]
)
@pytest.mark.parametrize("seed", range(2))
def test_d4_in_jobs_that_are_soon_over(permits: int, tasks: int, seed: int):
    """Each by itself: what a worker had of the last one gives it no claim to more of the next."""
    world = three(permits, leads=True, seed=seed)
    for _ in range(6):
        assert ratio(shares(world, tasks)) <= MOST
