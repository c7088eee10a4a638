"""B9, B13, D5 and E5 with real processes: engines that are killed lose nothing and exceed nothing."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from locktender import Run, RunFailed, RunState, TaskState
from locktender.testing import EngineProcess, Engines, Overlap, eventually
from locktender.testing.fixtures import VirtualClock
from locktender.testing.overlap import alive
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "engine_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "90s"
APART = {"where": "apart"}
POOLS = {"db": 4, "api": 6, "cpu": 2}


def kill_while_writing(engine: EngineProcess, store: Path, chance: random.Random) -> None:
    """Kills it the moment the log of the database grows: in the middle of a commit, or right after."""
    wal = store.with_name(store.name + "-wal")

    def written() -> int:
        return wal.stat().st_mtime_ns if wal.exists() else 0

    before = written()
    end = time.monotonic() + chance.uniform(0.05, 0.3)
    while written() == before and time.monotonic() < end:
        pass
    engine.kill()


def apart_tasks(run: Run[Any]) -> Counter[TaskState]:
    return Counter(task.state for task in run.tasks())


def test_b9_the_next_start_recovers_and_repeats_nothing_finished(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    latch = tmp_path / "latch"
    engine = make_engine.process(STEPS_FILE).ready()
    client = make_engine.connect()
    run = client.submit(steps.chain, str(latch))
    eventually(lambda: "held" in overlap.names())

    engine.kill()
    waiting = client.submit(steps.hold, "", 5)  # accepted while nobody leads
    assert client.why(waiting.id).state == "queued"
    make_engine()
    eventually(lambda: overlap.count("held") == 3)  # both, and the lost one again
    latch.touch()

    assert run.result(TIMEOUT) == 6
    assert waiting.result(TIMEOUT) == 5
    assert (overlap.count("first"), overlap.count("last")) == (1, 1)
    assert overlap.labels("held").count("7") == 2
    assert overlap.peak("first") == 1


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
)
def test_b9_killed_at_random_moments_one_engine_after_another(
    make_engine: Engines, overlap: Overlap, seed: int
):
    """Each engine is killed in the middle of its work, mostly of a commit; the last one finishes it all."""
    chance = random.Random(seed)
    client = make_engine.connect()
    client.pools.set("db", limit=POOLS["db"])
    client.pools.set("api", limit=POOLS["api"])
    runs = [client.submit(steps.light, list(range(12))) for _ in range(4)]
    for number in range(4):
        engine = make_engine.process(STEPS_FILE).ready()
        eventually(lambda n=number: overlap.count("db") > 5 * n if "db" in overlap.names() else 0)
        kill_while_writing(engine, make_engine.path, chance)

    make_engine()

    assert [run.result(TIMEOUT) for run in runs] == [sum(range(12)) + 12] * 4
    for name in ("db", "api"):
        assert overlap.peak(name) <= POOLS[name]
    # what was completed was not run again: every further body of an item follows a killed one
    completed = 4 * 12
    unfinished = sum(not span.finished for span in overlap.spans("db"))
    assert overlap.count("db") <= completed + unfinished + 4 * 4


@pytest.mark.parametrize("kills", [5, pytest.param(12, marks=pytest.mark.long)])
def test_b9_three_engines_killed_at_random(make_engine: Engines, overlap: Overlap, kills: int):
    """Limits over all engines hold through every death; each run ends with its one right result."""
    chance = random.Random(7)
    client = make_engine.connect()
    for name, limit in POOLS.items():
        client.pools.set(name, limit=limit)
    settings = {"max_concurrent_runs": 4}
    engines = [make_engine.process(STEPS_FILE, **settings).ready() for _ in range(3)]
    runs: list[Run[int]] = []
    for number in range(kills):
        runs += [client.submit(steps.pipeline, list(range(8))) for _ in range(2)]
        victim = number % 3
        kill_while_writing(engines[victim], make_engine.path, chance)
        engines[victim] = make_engine.process(STEPS_FILE, **settings)
        engines[victim].ready()

    assert {run.result("90s") for run in runs} == {sum((n + 1) * 2 for n in range(8))}

    for name, limit in POOLS.items():
        assert overlap.peak(name) <= limit, name
    assert overlap.count("total") >= len(runs)


def test_b9_on_sqlite_take_over_does_not_wait_for_a_lease(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    """The kernel tells of the death: the leases are longer than the test waits."""
    latch = tmp_path / "latch"
    leases = {"worker_lease": "1h", "leader_lease": "1h"}
    leader = make_engine.process(STEPS_FILE, async_permits=2, **leases).ready()
    client = make_engine.connect()
    mine = client.submit(steps.hold, str(latch), 1)
    eventually(lambda: overlap.count("held") == 1)
    second = make_engine.process(STEPS_FILE).ready()

    leader.kill()
    new = client.submit(steps.many, [1], 0.001)
    assert new.result(TIMEOUT) == [2]
    eventually(lambda: overlap.count("held") == 2)

    latch.touch()
    assert mine.result(TIMEOUT) == 1
    assert overlap.spans("held")[1].pid == second.pid


def test_b9_healthy_work_is_not_touched(make_engine: Engines, overlap: Overlap, tmp_path: Path):
    """The leader dies; the work of a living worker goes on under the next one, and counts once."""
    latch = tmp_path / "latch"
    leader = make_engine.process(STEPS_FILE).ready()
    client = make_engine.connect()
    first = client.submit(steps.hold, "", 0)
    assert first.result(TIMEOUT) == 0
    worker = make_engine.process(STEPS_FILE, worker_labels=APART).ready()
    run = client.submit(steps.apart, str(latch))
    eventually(lambda: overlap.count("apart") == 3 if "apart" in overlap.names() else 0)

    leader.kill()
    after = client.submit(steps.hold, "", 1)
    assert after.result(TIMEOUT) == 1  # somebody leads
    latch.touch()

    assert run.result(TIMEOUT) == ["async", "thread", "process"]
    assert overlap.count("apart") == 3
    assert all(span.finished for span in overlap.spans("apart"))
    assert worker.returncode is None
    assert {task.attempt for task in run.tasks()} == {1}


def test_d5_a_worker_killed_in_the_middle_of_its_tasks(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    """Async, thread and process: reclaimed, completed elsewhere, nothing of them left (B13)."""
    latch = tmp_path / "latch"
    client = make_engine()
    worker = make_engine.process(STEPS_FILE, worker_labels=APART).ready()
    run = client.submit(steps.apart, str(latch))
    eventually(lambda: overlap.count("apart") == 3 if "apart" in overlap.names() else 0)
    child = next(span.pid for span in overlap.spans("apart") if span.label == "process")
    work = Path(client.settings.work_dir)
    assert list(work.rglob("left"))

    worker.kill()
    eventually(lambda: not alive(child))
    eventually(lambda: apart_tasks(run)[TaskState.REQUESTED] == 3)
    make_engine.process(STEPS_FILE, worker_labels=APART).ready()
    eventually(lambda: overlap.count("apart") == 6)
    assert len(list(work.rglob("left"))) == 1  # the dead worker's was swept
    latch.touch()

    assert run.result(TIMEOUT) == ["async", "thread", "process"]
    assert Counter(overlap.labels("apart")) == {"async": 2, "thread": 2, "process": 2}
    assert overlap.peak("apart") == 3
    assert {task.attempt for task in run.tasks()} == {2}


def test_d5_a_poison_task_does_not_kill_workers_for_ever(make_engine: Engines, overlap: Overlap):
    client = make_engine.connect()
    run = client.submit(steps.poisonous)
    for _ in range(2):
        engine = make_engine.process(STEPS_FILE).ready()
        eventually(lambda engine=engine: engine.returncode == -signal.SIGKILL)
    last = make_engine.process(STEPS_FILE).ready()

    with pytest.raises(RunFailed, match="worker_lost"):
        run.result(TIMEOUT)
    assert overlap.count("poison") == 2
    assert last.returncode is None


def test_e5_a_dead_holders_slots_go_to_the_next(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    latch = tmp_path / "latch"
    client = make_engine.connect()
    client.pools.set("narrow", limit=1)
    engine = make_engine.process(STEPS_FILE).ready()
    runs = [client.submit(steps.locking, str(latch), number) for number in range(3)]
    eventually(lambda: "narrow" in overlap.names())

    engine.kill()
    make_engine()
    eventually(lambda: overlap.count("narrow") == 2)
    assert client.pools.get("narrow").used == 1
    latch.touch()

    assert [run.result(TIMEOUT) for run in runs] == [0, 1, 2]
    assert overlap.peak("narrow") == 1


def test_e5_a_pools_own_lease_outlasts_a_dead_holder(
    engine_clock: VirtualClock, make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    latch, other = tmp_path / "latch", tmp_path / "other"
    client = make_engine(async_permits=1)
    client.pools.set("narrow", limit=1, lease="1h")
    busy = client.submit(steps.hold, str(other))  # this worker is full: the other gets the slot
    eventually(lambda: "held" in overlap.names())
    engine = make_engine.process(STEPS_FILE).ready()
    first = client.submit(steps.locking, str(latch), 1)
    eventually(lambda: "narrow" in overlap.names())
    other.touch()
    assert busy.result(TIMEOUT) == 0

    engine.kill()
    latch.touch()
    second = client.submit(steps.locking, str(latch), 2)
    eventually(lambda: " is dead, for " in str(second.why()))
    engine_clock.move("59m")
    assert client.submit(steps.hold, "").result(TIMEOUT) == 0  # all that was due has been done
    assert overlap.count("narrow") == 1
    engine_clock.move("2m")

    assert {first.wait(TIMEOUT), second.wait(TIMEOUT)} == {RunState.SUCCEEDED}
    assert overlap.peak("narrow") == 1
