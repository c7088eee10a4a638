"""A2, A3, D1, D2, E3, E4 over processes: which tasks may run together, and in which order."""

from __future__ import annotations

import random
from pathlib import Path

from tests.support.fleet import FILES, TIMEOUT, Fleet, fleet, gates, pids, steps

from locktender import RunState
from locktender.testing import eventually

pytest_plugins = [
    "locktender.testing.plugin",
    "locktender.testing.postgres",
    "tests.support.shared_cluster",
]


def test_a2_the_window_is_never_exceeded(standing: Fleet):
    """Items of every length; that all of it is used is seen below, where the test holds them."""
    chance = random.Random(2)
    seconds = [chance.uniform(0.001, 0.03) for _ in range(20)]

    assert standing.client.submit(fleet.lengths, seconds, 3).result(TIMEOUT) == seconds

    assert standing.overlap.count("takes") == 20
    assert standing.overlap.peak("takes") <= 3
    assert standing.overlap.count("everything") == 1
    assert set(pids(standing.overlap, "takes")) <= standing.pids


def test_a2_the_window_is_regained_after_three_end_at_once(standing: Fleet, tmp_path: Path):
    """Items of one group share a latch: they end in the same instant, on three workers."""
    groups = [tmp_path / str(index) for index in range(5)]
    run = standing.client.submit(steps.windowed, [str(groups[n // 3]) for n in range(15)], 3)
    for number, group in enumerate(groups):
        eventually(lambda n=number: standing.overlap.count("items") == 3 * (n + 1))
        assert standing.overlap.levels("items")[-1] == 3
        group.touch()

    assert len(run.result(TIMEOUT)) == 15
    assert standing.overlap.peak("items") == 3  # A2: exactly the window


def test_a3_many_end_in_one_millisecond_on_several_workers(standing: Fleet, tmp_path: Path):
    groups = [tmp_path / str(index) for index in range(4)]

    run = standing.client.submit(steps.windowed, [str(groups[n // 40]) for n in range(160)], 40)
    for number, group in enumerate(groups):
        eventually(lambda n=number: standing.overlap.count("items") == 40 * (n + 1))
        group.touch()

    assert run.result(TIMEOUT) == [str(n // 40) for n in range(160)]
    assert standing.overlap.count("items") == 160  # none lost, none twice
    assert (standing.overlap.count("gather"), standing.overlap.peak("items")) == (1, 40)
    assert set(pids(standing.overlap, "items")) == standing.pids
    assert {(task.attempt, str(task.state)) for task in run.tasks()} == {(1, "completed")}


def test_d1_a_sequential_flow_keeps_its_order(standing: Fleet):
    """Ten tasks over three workers, every third retried twice: the next waits for its retries too."""
    expected = [n for n in range(10) for _ in range(3 if n % 3 == 0 else 1)]

    for _ in range(2):
        assert standing.client.submit(steps.ten_in_order).result(TIMEOUT) == list(range(10))

    assert standing.overlap.labels("order") == [str(n) for n in expected] * 2
    assert standing.overlap.peak("order") == 1
    assert set(pids(standing.overlap, "order")) == standing.pids


def test_d2_a_hundred_runs_in_parallel_on_one_worker(standing: Fleet, tmp_path: Path):
    """The step asks for a label that one worker has."""
    standing.client.limits.set_max_concurrent_runs(100)
    latch = tmp_path / "latch"
    lone = standing.cluster.worker(*FILES, labels={"role": "lone"}).ready()

    runs = standing.client.submit_many(fleet.lone_holding, [(str(latch), n) for n in range(100)])
    eventually(lambda: standing.overlap.count("lone") == 100)
    latch.touch()

    assert [run.result(TIMEOUT) for run in runs] == list(range(100))
    assert standing.overlap.peak("lone") == 100
    assert set(pids(standing.overlap, "lone")) == {lone.pid}
    assert lone.close() == 0


def test_e3_max_parallel_stacks_with_a_pool(standing: Fleet, tmp_path: Path):
    standing.client.pools.set("scarce", limit=2)
    run = standing.client.submit(fleet.eight_at_once, str(tmp_path / "latch"))
    overlap = standing.overlap

    # A body is counted in one after the other.
    eventually(lambda: [overlap.count(each) for each in ("all", "scarce", "free")] == [8, 2, 6])
    assert gates(run) == {"pool:scarce", "run:parallel"}
    (tmp_path / "latch").touch()

    assert run.wait(TIMEOUT) == RunState.SUCCEEDED
    assert (overlap.peak("all"), overlap.peak("scarce")) == (8, 2)
    assert overlap.count("all") == 30


def test_e4_no_barrier_between_levels(standing: Fleet, tmp_path: Path):
    run = standing.client.submit(fleet.two_branches, str(tmp_path / "latch"))

    eventually(lambda: "fast-3" in standing.overlap.names())
    assert "slow-2" not in standing.overlap.names()
    (tmp_path / "latch").touch()
    assert run.result(TIMEOUT) == 2
