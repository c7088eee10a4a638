"""B12, B13, C3, C5: each executor × each way to end, on a worker in a process of its own.

Whatever happens to an attempt, three things are true afterwards: its slot was
freed exactly once (the history is judged at the end of every test, and a probe
gets the only slot), its work directory is gone, and none of its processes lives.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.leases import KEPT, lapse
from tests.support.portable import LINUX
from tests.support.stopping import pause_outside_of_a_write

from locktender import Client, Run, RunState, TaskState, flow
from locktender.testing import EngineProcess, Engines, Overlap, eventually
from locktender.testing.overlap import alive
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

pytest_plugins = ["locktender.testing.plugin"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "executor_end_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "60s"
TIMEOUTS = ("1s", "10s", "60s")
"""Of a body that is to time out after its first line: on a busy machine that takes longer."""
EXECUTORS = ("async", "thread", "process")

ENDS: dict[str, tuple[RunState, TaskState, list[str]]] = {
    "success": (RunState.SUCCEEDED, TaskState.COMPLETED, ["completed"]),
    "failure": (RunState.FAILED, TaskState.FAILED, ["failed"]),
    "unserialisable": (RunState.FAILED, TaskState.FAILED, ["failed"]),
    "timeout": (RunState.FAILED, TaskState.TIMED_OUT, ["timed_out"]),
    "cancel": (RunState.CANCELLED, TaskState.CANCELLED, ["cancelled"]),
    "crash": (RunState.FAILED, TaskState.FAILED, ["failed"]),
    "drain": (RunState.SUCCEEDED, TaskState.COMPLETED, ["handed_back", "completed"]),
    "lease_loss": (RunState.SUCCEEDED, TaskState.COMPLETED, ["abandoned", "completed"]),
}


LOSING = ("crash", "drain", "lease_loss")
"""After these there may be another worker: each has a world of its own."""


class Attempt(NamedTuple):
    """What a body said of itself when it began."""

    workdir: Path
    pid: int
    started: list[int]
    """Processes it started."""


@pytest.fixture
def engine_settings(how: str, executor: str) -> dict[str, Any]:
    """A drained worker does not wait for its tasks. A child ends itself when the lease has passed: it is short."""
    if (how, executor) == ("lease_loss", "process"):
        # Its process lives, so that it is stalled at first.
        return {
            "grace": "0s",
            "process_permits": 1,
            **KEPT,
            "worker_lease": "10s",
            "stall_grace": "5s",
        }
    return {"grace": "0s", "process_permits": 1, **KEPT}


class World:
    """A leader that cannot run the step, and a worker that can."""

    def __init__(self, make_engine: Engines, folder: Path) -> None:
        self._make_engine = make_engine
        self._folder = folder
        self._seen = folder / "seen"
        self.latch = folder / "latch"
        self.engine: Client = make_engine()
        self.engine.pools.set("slots", limit=1)
        self.worker: EngineProcess = self.new_worker()

    def new_worker(self) -> EngineProcess:
        return self._make_engine.process(
            STEPS_FILE, worker_labels=steps.APART, work_dir=str(self._folder / "work")
        ).ready()

    def begun(self, executor: str, how: str) -> Run[Any]:
        """A run whose body has said its first line."""
        before = len(self.attempts())
        files = str(self._seen), str(self.latch)
        if how != "timeout":
            run = self.engine.submit(steps.ending, executor, how, *files)
            eventually(lambda: len(self.attempts()) > before, "60s", "the body's first line")
            return run
        for timeout in TIMEOUTS:
            run = self.engine.submit(timing_out, executor, timeout, *files)
            eventually(lambda r=run: len(self.attempts()) > before or r.status() == RunState.FAILED)
            if len(self.attempts()) > before:
                return run
        raise AssertionError(f"no body began within {TIMEOUTS[-1]}")

    def attempts(self) -> list[Attempt]:
        lines = self._seen.read_text().splitlines() if self._seen.exists() else []
        found = [line.split() for line in lines]
        return [Attempt(Path(path), int(pid), [*map(int, more)]) for path, pid, *more in found]

    def lose_lease(self, executor: str) -> None:
        pause_outside_of_a_write(self.worker, self._make_engine.path)
        if executor != "process":
            lapse(str(self._make_engine.path), self.worker)

    def left(self) -> list[str]:
        """Work directories of attempts that are still there."""
        return [str(each) for each in (self._folder / "work").glob("locktender-*/*")]


@flow
def timing_out(executor: str, timeout: str, seen: str, latch: str) -> Any:
    return steps.STEPS[executor].with_options(timeout=timeout)("timeout", seen, latch)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("how", ["all that leave the worker", *LOSING])
def test_b13_c3_c5_every_end_leaves_nothing_behind(
    make_engine: Engines, overlap: Overlap, tmp_path: Path, executor: str, how: str
):
    world = World(make_engine, tmp_path)
    for each in [how] if how in LOSING else [name for name in ENDS if name not in LOSING]:
        one_end(world, overlap, executor, each)

    assert world.worker.close() == 0
    assert [each.pid for each in world.attempts() if alive(each.pid)] == []


def one_end(world: World, overlap: Overlap, executor: str, how: str) -> None:
    state, task_state, ends = ENDS[how]
    before = len(world.attempts())
    run = world.begun(executor, how)
    first = world.attempts()[before]
    assert (first.pid == world.worker.pid) == (executor != "process")
    assert len(first.started) == (executor == "process")

    if how == "cancel":
        run.cancel()
    elif how == "drain":
        assert world.worker.close() == 0  # asked to end, it hands back and ends by itself
    elif how == "lease_loss":
        world.lose_lease(executor)
        eventually(lambda: ended(run) == ["abandoned"], "60s", "the lease's end")
        if executor == "process":
            assert not alive(first.pid)  # at the deadline, though its worker stands still
        world.worker.resume()
    if how in {"cancel", "drain", "lease_loss", "timeout"}:
        # It ended because it was stopped: what its own process had is gone before anything follows.
        eventually(lambda: not first.workdir.exists(), "60s", "the end of the work directory")
    if how == "drain":
        world.worker = world.new_worker()
    if how in {"drain", "lease_loss"}:
        eventually(lambda: len(world.attempts()) == before + 2, "60s", "the next attempt")
        world.latch.touch()

    assert run.wait(TIMEOUT) == state
    (task,) = run.tasks()
    assert (task.state, ended(run)) == (task_state, how_it_ended(executor, how, ends))
    # The slot: nobody has it, it was given back once, and whoever asks gets it.
    assert world.engine.pools.get("slots").used == 0
    assert world.engine.submit(steps.probing).result(TIMEOUT)
    if how != "lease_loss":  # a paused host may overlap for a moment, and says so
        assert overlap.peak("slots") == 1
    if how == "crash" and executor != "process":
        # It took its worker along. Whoever comes next sweeps what that one left.
        eventually(lambda: world.worker.returncode == -signal.SIGKILL, "60s", "the worker's end")
        world.worker = world.new_worker()
    eventually(lambda: world.left() == [], "60s", "the end of every work directory")
    tried = world.attempts()[before:]
    assert len({each.workdir for each in tried}) == len(tried)
    # Elsewhere a child does not know what a body has left running.
    gone = [pid for each in tried for pid in each.started] if LINUX else []
    if executor == "process" and how in {*steps.STOPPED, "crash"}:
        gone.append(first.pid)  # else it is warm, and waits for the next body
    for pid in gone:
        eventually(lambda pid=pid: not alive(pid), "60s", f"the end of process {pid}")


def how_it_ended(executor: str, how: str, ends: list[str]) -> list[str]:
    # Without a child of its own a body that kills its process takes the whole worker with it.
    return ["abandoned", *ends] if how == "crash" and executor != "process" else ends


def ended(run: Run[Any]) -> list[str]:
    """How each attempt of the run's task ended, and then the task, in order."""
    words = {"completed", "failed", "timed_out", "cancelled", "handed_back", "abandoned"}
    return [each.after for each in run.events() if each.task is not None and each.after in words]
