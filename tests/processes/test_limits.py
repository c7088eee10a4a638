"""E1, E2, E5, E10, E11 over processes: limits hold whichever process submits, leads or works."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.fleet import FILES, TIMEOUT, Fleet, ended, fleet, gates, steps

from locktender import InvalidInput, Run, RunState, TaskState
from locktender.testing import eventually

pytest_plugins = [
    "locktender.testing.plugin",
    "locktender.testing.postgres",
    "tests.support.shared_cluster",
]


# -- runs ------------------------------------------------------------------------------------------


def test_e1_runs_executing_at_once(standing: Fleet, tmp_path: Path):
    for limit, peak in ((1, 1), (3, 3), (-1, 12)):
        standing.client.limits.set_max_concurrent_runs(limit)
        name, latch = f"at-{limit}", tmp_path / str(limit)
        calls = [(str(latch), n, name) for n in range(12)]
        runs = standing.client.submit_many(fleet.holding, calls)
        eventually(lambda name=name, peak=peak: standing.overlap.count(name) == peak)
        assert len(standing.client.runs.list(status="running")) == peak

        latch.touch()

        assert ended(runs) == {"succeeded"}
        assert standing.overlap.peak(name) == peak


def test_e1_zero_is_refused_in_favour_of_pause(standing: Fleet, tmp_path: Path):
    limits = standing.client.limits
    with pytest.raises(InvalidInput, match="pause"):
        limits.set_max_concurrent_runs(0)
    (tmp_path / "open").touch()

    limits.pause()
    run = standing.client.submit(fleet.holding, str(tmp_path / "open"))
    assert "paused" in str(run.why())
    assert standing.overlap.names() == []
    limits.resume()

    assert run.result(TIMEOUT) == 0


def test_e2_blocked_runs_are_skipped_and_others_overtake(standing: Fleet, tmp_path: Path):
    """Key, key=value and per value at once; runs without the tag are not concerned."""
    client, latch = standing.client, tmp_path / "latch"
    client.limits.set_max_concurrent_runs(-1)
    client.limits.set_tag("tenant", limit=4)
    client.limits.set_tag("tenant", per_value=True, limit=2)
    client.limits.set_tag("tier", "free", limit=1)

    def submit(item: int, **tags: str) -> Run[Any]:
        return client.submit(fleet.holding, str(latch), item, tags=tags)

    runs = [submit(n, tenant="a") for n in range(4)]  # 0 1 go, 2 3 wait
    runs += [submit(n, tenant="b", tier="free") for n in (10, 11)]  # 10 goes, 11 waits
    runs += [submit(20, tenant="c"), submit(30, tenant="d")]  # 20 is the fourth with a tenant
    runs += [submit(n) for n in (40, 41)]  # no tag: not concerned
    runs += [submit(50, tier="paid"), submit(51, tier="free")]  # 51 waits for 10

    eventually(lambda: standing.overlap.count("held") == 7)
    assert set(standing.overlap.labels("held")) == {"0", "1", "10", "20", "40", "41", "50"}
    assert len(client.queue.list()) == 5
    assert {"tag:tenant", "tag:tenant=*a"} <= gates(runs[2])
    assert gates(runs[-1]) == {"tag:tier=free"}

    latch.touch()
    assert ended(runs) == {"succeeded"}
    assert standing.overlap.count("held") == 12


def test_e2_d8_priority_then_age(standing: Fleet, tmp_path: Path):
    client = standing.client
    client.limits.set_max_concurrent_runs(1)
    latch, later = tmp_path / "latch", tmp_path / "later"
    later.touch()
    first = client.submit(fleet.holding, str(latch), 0)
    eventually(lambda: standing.overlap.count("held") == 1)
    runs = [
        client.submit(fleet.holding, str(later), item, priority=priority)
        for item, priority in ((1, 0), (2, 5), (3, 0), (4, 5), (5, -1))
    ]
    client.queue.reprioritise(runs[2], 9)
    eventually(lambda: client.queue.list()[0].run.id == runs[2].id)
    latch.touch()

    assert ended([first, *runs]) == {"succeeded"}
    assert standing.overlap.labels("held") == ["0", "3", "2", "4", "1", "5"]
    assert standing.overlap.peak("held") == 1


# -- pools -----------------------------------------------------------------------------------------


def test_e5_several_pools_with_weights(standing: Fleet):
    standing.client.limits.set_max_concurrent_runs(-1)
    standing.client.pools.set("left", limit=3)
    standing.client.pools.set("right", limit=5)
    runs = [standing.client.submit(fleet.mixed, 5) for _ in range(4)]

    assert ended(runs) == {"succeeded"}

    assert standing.overlap.peak("left") <= 3
    assert standing.overlap.peak("right") <= 5
    assert standing.overlap.count("both") == 20


def test_e5_all_or_none(standing: Fleet, tmp_path: Path):
    """A task that waits for one pool holds nothing of the other."""
    client = standing.client
    client.pools.set("left", limit=1)
    client.pools.set("narrow", limit=1)
    latch, other = tmp_path / "latch", tmp_path / "other"
    other.touch()
    holder = client.submit(steps.locking, str(latch))
    eventually(lambda: standing.overlap.count("narrow") == 1)
    waiter = client.submit(fleet.wants_both, str(other))
    eventually(lambda: gates(waiter) == {"pool:narrow"})

    assert client.pools.get("left").used == 0
    assert client.submit(fleet.lefts, 3).result(TIMEOUT) == [0, 1, 2]  # nobody is in the way
    assert "left_and_lock" not in standing.overlap.names()
    latch.touch()

    assert ended([waiter, holder]) == {"succeeded"}


def test_e5_a_limit_is_raised_lowered_and_unset(standing: Fleet, tmp_path: Path):
    client, overlap = standing.client, standing.overlap
    client.limits.set_max_concurrent_runs(-1)
    latches = [tmp_path / str(n) for n in range(20)]
    client.pools.set("narrow", limit=1)
    runs = [client.submit(steps.locking, str(latch), n) for n, latch in enumerate(latches)]
    eventually(lambda: overlap.count("narrow") == 1)

    client.pools.set("narrow", limit=5)
    eventually(lambda: overlap.count("narrow") == 5)
    assert overlap.peak("narrow") == 5
    client.pools.set("narrow", limit=2)  # holders finish, nothing new starts above it
    for latch in latches[:3]:
        latch.touch()
    assert ended(runs[:3]) == {"succeeded"}
    eventually(lambda: client.pools.get("narrow").used == 2)
    assert (overlap.count("narrow"), overlap.levels("narrow")[-1]) == (5, 2)
    client.pools.delete("narrow")
    eventually(lambda: overlap.count("narrow") == 20)
    assert client.pools.get("narrow").limit_text == "unlimited (never set)"

    for latch in latches:
        latch.touch()
    assert ended(runs) == {"succeeded"}


def test_e5_what_can_never_be_had_is_refused(standing: Fleet):
    client = standing.client
    client.pools.set("right", limit=1)
    with pytest.raises(InvalidInput, match="right"):
        client.submit(fleet.rights)
    assert standing.idle()

    client.pools.set("right", limit=2)
    client.pools.pause("right")
    run = client.submit(fleet.rights)
    eventually(lambda: "paused" in str(run.why()))
    client.pools.set("right", limit=1)
    eventually(lambda: "never" in str(run.why()))
    client.pools.set("right", limit=2)
    client.pools.resume("right")
    assert run.result(TIMEOUT) == 1


def test_e5_a_key_has_slots_of_its_own(standing: Fleet, tmp_path: Path):
    latch = tmp_path / "latch"
    standing.client.pools.set("api[*]", limit=2)
    standing.client.pools.set("api[big]", limit=4)
    tenants = ("a", "b", "big")
    runs = [standing.client.submit(fleet.apis, 10, tenant, str(latch)) for tenant in tenants]
    eventually(lambda: [standing.overlap.count(f"api-{tenant}") for tenant in tenants] == [2, 2, 4])
    latch.touch()

    assert ended(runs) == {"succeeded"}

    peaks = [standing.overlap.peak(f"api-{tenant}") for tenant in tenants]
    assert peaks == [2, 2, 4]


# -- races -----------------------------------------------------------------------------------------


def test_e10_cancel_against_start(standing: Fleet):
    """Sixty runs, each cancelled a moment after it was submitted: before, at, or after its start."""
    client, overlap = standing.client, standing.overlap
    client.limits.set_max_concurrent_runs(4)
    client.pools.set("gate", limit=2)
    other = standing.cluster.client()
    chance = random.Random(10)
    runs: list[Run[int]] = []
    client.limits.pause()  # one that is certainly cancelled before its start
    runs.append(client.submit(fleet.briefs, 0))
    other.runs.cancel(runs[0].id)
    assert runs[0].wait(TIMEOUT) == RunState.CANCELLED
    client.limits.resume()
    for number in range(1, 60):
        runs.append(client.submit(fleet.briefs, number))
        for _ in range(chance.choice((0, 0, 1, 2, 4, 8))):
            runs[-1].status()  # a moment: one read of the store
        other.runs.cancel(runs[-1].id)

    states = [run.wait(TIMEOUT) for run in runs]

    assert set(states) <= {RunState.SUCCEEDED, RunState.CANCELLED}
    assert states.count(RunState.CANCELLED) > 0
    bodies = overlap.spans("brief")
    for number, (run, state) in enumerate(zip(runs, states, strict=True)):
        mine = [span for span in bodies if span.label == str(number)]
        tasks = run.tasks()
        # a body that was never accepted never began, and none began twice
        assert len(mine) <= sum(task.started_at is not None for task in tasks)
        if state == RunState.SUCCEEDED:
            assert [str(task.state) for task in tasks] == ["completed"] * 2
            assert [span.finished for span in mine] == [True] * 2
        else:
            over = {TaskState.COMPLETED, TaskState.CANCELLED, TaskState.SKIPPED}
            assert {task.state for task in tasks} <= over
    if bodies:
        assert overlap.peak("brief") <= 2


def test_e11_fifty_claimers_of_one_slot(standing: Fleet, tmp_path: Path):
    """25 are steps on three workers, 25 are plain code of two other processes: one holds it, 49 wait."""
    client, overlap = standing.client, standing.overlap
    client.limits.set_max_concurrent_runs(-1)
    client.pools.set("narrow", limit=1)
    latch = tmp_path / "latch"
    first = client.submit(steps.locking, str(latch), 0)
    eventually(lambda: overlap.count("narrow") == 1)
    runs = client.submit_many(steps.locking, [(str(latch), n) for n in range(1, 25)])
    command = [sys.executable, str(FILES[0]), standing.url]
    others = [
        subprocess.Popen([*command, str(start), str(count)], env=os.environ)
        for start, count in ((25, 13), (38, 12))
    ]
    try:
        eventually(lambda: client.pools.get("narrow").waiting == 49)
        assert client.pools.get("narrow").used == 1
        latch.touch()
        assert [other.wait(90) for other in others] == [0, 0]
    finally:
        for other in others:
            other.kill()
            other.wait()

    assert [run.result(TIMEOUT) for run in (first, *runs)] == list(range(25))
    assert sorted(map(int, overlap.labels("narrow"))) == list(range(50))
    assert overlap.peak("narrow") == 1
    eventually(lambda: client.pools.get("narrow").used == 0)
