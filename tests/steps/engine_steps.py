"""Steps and flows for the tests of the engine; imported by the tests and by every process they start.

Every body records itself under the name of what bounds it. A body that has to
wait for the test waits for a file (a *latch*), so that it can be in any process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from locktender import Retry, current, flow, step
from locktender.testing import recording

LOOK = 0.002
MAX_LOOK = 0.02
"""Hundreds of bodies may wait at once."""


def opened(latch: str) -> bool:
    return not latch or Path(latch).exists()


async def until_open(latch: str) -> None:
    pause = LOOK
    while not opened(latch):  # the test opens it, maybe from another process
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_LOOK)


def block_until_open(latch: str) -> None:
    """A thread cannot be stopped: it looks by itself whether it was told to."""
    pause = LOOK
    while not opened(latch):
        job = current()
        if job is not None and job.stop_reason is not None:
            return
        time.sleep(pause)
        pause = min(2 * pause, MAX_LOOK)


# -- bodies that take a while, one for each executor -----------------------------------------------


@step(max_abandons=100)
async def on_loop(item: int, seconds: float = 0.01, name: str = "work") -> int:
    with recording(name, label=str(item)):
        await asyncio.sleep(seconds)
    return item * 2


@step(max_abandons=100)
def in_thread(item: int, seconds: float = 0.01, name: str = "work") -> int:
    with recording(name, label=str(item)):
        time.sleep(seconds)
    return item * 2


@step(executor="process", max_abandons=100)
def in_process(item: int, seconds: float = 0.01, name: str = "work") -> int:
    with recording(name, label=str(item)):
        time.sleep(seconds)
    return item * 2


@step(max_abandons=100)
def total(values: list[int]) -> int:
    with recording("total"):
        return sum(values)


@step(max_abandons=100)
async def held(latch: str, item: int = 0, name: str = "held") -> int:
    """Runs until the latch is open."""
    with recording(name, label=str(item)):
        await until_open(latch)
    return item


@step(max_abandons=100)
def held_in_thread(latch: str, item: int = 0, name: str = "held") -> int:
    with recording(name, label=str(item)):
        block_until_open(latch)
    return item


@step(executor="process", max_abandons=100)
def held_in_process(latch: str, item: int = 0, name: str = "held") -> int:
    with recording(name, label=str(item)):
        block_until_open(latch)
    return item


@flow
def hold(latch: str, item: int = 0) -> int:
    return held(latch, item)


@flow
def hold_in_thread(latch: str, item: int = 0) -> int:
    return held_in_thread(latch, item)


@flow
def hold_in_process(latch: str, item: int = 0) -> int:
    return held_in_process(latch, item)


# -- every way to end (C5) -------------------------------------------------------------------------


def _end(how: str, latch: str) -> Any:
    """What a sync body does to end in the given way."""
    job = current()
    assert job is not None
    if how == "failure":
        raise ValueError("as it was asked to")
    if how == "retry" and job.attempt == 1:
        raise Retry(after="1ms")
    if how == "unserialisable":
        return {"a", object()}
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how in {"timeout", "cancel"}:
        block_until_open(latch)
    return 1


@step(pools={"slots": 2, "other": 1})
async def ending_on_loop(how: str, latch: str) -> Any:
    with recording("ending", weight=2):
        if how in {"timeout", "cancel"}:
            await until_open(latch)
        return _end(how, latch)


@step(pools={"slots": 2, "other": 1})
def ending_in_thread(how: str, latch: str) -> Any:
    with recording("ending", weight=2):
        return _end(how, latch)


@step(pools={"slots": 2, "other": 1}, executor="process")
def ending_in_process(how: str, latch: str) -> Any:
    with recording("ending", weight=2):
        return _end(how, latch)


ENDINGS: dict[str, Any] = {
    "async": ending_on_loop,
    "thread": ending_in_thread,
    "process": ending_in_process,
}


@flow
def endings(executor: str, how: str, latch: str, count: int) -> list[Any]:
    options: dict[str, Any] = {}
    if how == "timeout":
        # Long enough for a child to begin, short enough not to wait for.
        options["timeout"] = "50ms"
    if how == "retry":
        options["retries"] = 1
    ending = ENDINGS[executor].with_options(**options)
    return [ending(how, latch) for _ in range(count)]


@step(pools={"slots": 4, "other": 2})
async def probe() -> bool:
    """Needs every slot there is: it starts only when nothing is held."""
    with recording("ending", weight=4):
        return True


@flow
def probing() -> bool:
    return probe()


# -- work that survives crashes --------------------------------------------------------------------


@step(pools={"db": 1}, max_abandons=100)
async def read(item: int) -> int:
    with recording("db", label=str(item)):
        await asyncio.sleep(0.01)
    return item


@step(pools={"api": 2}, max_abandons=100)
def call(item: int) -> int:
    with recording("api", label=str(item), weight=2):
        time.sleep(0.01)
    return item + 1


@step(pools={"cpu": 1}, executor="process", max_abandons=100)
def crunch(item: int) -> int:
    with recording("cpu", label=str(item)):
        time.sleep(0.01)
    return item * 2


@flow
def pipeline(items: list[int]) -> int:
    """All three executors, each behind a pool of its own."""
    return total(crunch.map(call.map(read.map(items, window=3))))


@flow
def light(items: list[int]) -> int:
    """As `pipeline`, without the cost of starting processes."""
    return total(call.map(read.map(items, window=3)))


@flow
def chain(latch: str) -> int:
    """A finished step, one that waits for the test, and one behind it."""
    first = on_loop(1, name="first")
    waiting = held.with_options(after=[first])(latch, 7)
    return on_loop.with_options(after=[waiting])(3, name="last")


@flow
def many(items: list[int], seconds: float) -> list[int]:
    return on_loop.map(items, seconds=seconds)


@flow
def of_each_kind(items: list[int], seconds: float) -> list[list[int]]:
    """Waits behind no other step: all of it may be offered at once."""
    return [each.map(items, seconds=seconds) for each in (on_loop, in_thread, in_process)]


BLOCKING: dict[str, Callable[..., Any]] = {
    "async": hold,
    "thread": hold_in_thread,
    "process": hold_in_process,
}


# -- what a body can see of itself -----------------------------------------------------------------


def _own_state(store: str) -> str:
    import sqlite3

    job = current()
    assert job is not None
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=60) as db:
        (state,) = db.execute("SELECT state FROM task WHERE id = ?", (job.task,)).fetchone()
    db.close()
    return state


@step
async def own_state_on_loop(store: str) -> str:
    return _own_state(store)


@step
def own_state_in_thread(store: str) -> str:
    return _own_state(store)


@step(executor="process")
def own_state_in_process(store: str) -> str:
    return _own_state(store)


@flow
def own_states(store: str) -> list[str]:
    return [own_state_on_loop(store), own_state_in_thread(store), own_state_in_process(store)]


def _use_workdir(fail: bool) -> str:
    job = current()
    assert job is not None
    found = [each.name for each in job.workdir.iterdir()]
    assert found == [], f"somebody else was here: {found}"
    (job.workdir / "deep" / "er").mkdir(parents=True)
    (job.workdir / "deep" / "file").write_text(str(job.token))
    with recording("workdir", label=str(job.workdir)):
        if fail and job.attempt == 1:
            raise OSError("once more, please")
    return str(job.workdir)


@step(retries=1, retry_delay="1ms")
async def workdir_on_loop(item: int) -> str:
    return _use_workdir(item % 2 == 0)


@step(retries=1, retry_delay="1ms")
def workdir_in_thread(item: int) -> str:
    return _use_workdir(item % 2 == 0)


@step(retries=1, retry_delay="1ms", executor="process")
def workdir_in_process(item: int) -> str:
    return _use_workdir(item % 2 == 0)


@flow
def workdirs(items: list[int]) -> list[list[str]]:
    return [
        workdir_on_loop.map(items),
        workdir_in_thread.map(items),
        workdir_in_process.map(items),
    ]


@step(retries=3, retry_delay="1ms", max_abandons=100)
async def in_order(number: int) -> int:
    """Every third fails at first: what comes behind must wait for its retries too."""
    job = current()
    assert job is not None
    with recording("order", label=str(number)):
        await asyncio.sleep(0.002)
        if number % 3 == 0 and job.attempt <= 2:
            raise OSError("not yet")
    return number


@flow(sequential=True)
def ten_in_order() -> list[int]:
    return [in_order(number) for number in range(10)]


@step(max_abandons=100)
async def gated(latch: str) -> str:
    """An item that ends when its latch is opened."""
    with recording("items", label=Path(latch).name):
        await until_open(latch)
    return Path(latch).name


@step(max_abandons=100)
async def gather(names: list[str]) -> list[str]:
    with recording("gather"):
        return names


@flow
def windowed(latches: list[str], window: int) -> list[str]:
    return gather(gated.map(latches, window=window))


@step(pool="narrow", max_abandons=100)
async def locked(latch: str, item: int = 0) -> int:
    with recording("narrow", label=str(item)):
        await until_open(latch)
    return item


@flow
def locking(latch: str, item: int = 0) -> int:
    return locked(latch, item)


@step(needs={"where": "apart"}, max_abandons=100)
async def apart_on_loop(latch: str) -> str:
    with recording("apart", label="async"):
        await until_open(latch)
    return "async"


@step(needs={"where": "apart"}, max_abandons=100)
def apart_in_thread(latch: str) -> str:
    with recording("apart", label="thread"):
        block_until_open(latch)
    return "thread"


@step(needs={"where": "apart"}, executor="process", max_abandons=100)
def apart_in_process(latch: str) -> str:
    job = current()
    assert job is not None
    (job.workdir / "left").write_text("behind")
    with recording("apart", label="process"):
        block_until_open(latch)
    return "process"


@flow
def apart(latch: str) -> list[str]:
    """One body of each kind, on a worker that the test chooses by its label."""
    return [apart_on_loop(latch), apart_in_thread(latch), apart_in_process(latch)]


@step(max_abandons=2)
def poison() -> None:
    """Takes its whole engine with it."""
    with recording("poison"):
        os.kill(os.getpid(), signal.SIGKILL)


@flow
def poisonous() -> None:
    return poison()
