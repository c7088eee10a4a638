"""Steps and flows for the acceptance tests over several processes, beside those of `engine_steps.py`.

Every body records itself under the name of what bounds it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

from locktender import RunState, TaskState, connect, current, flow, step
from locktender.testing import recording
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

steps = load(source(Path(__file__).with_name("engine_steps.py")))


# -- lengths of every kind -------------------------------------------------------------------------


@step
async def takes(seconds: float) -> float:
    with recording("takes"):
        await asyncio.sleep(seconds)
    return seconds


@step
async def everything(values: list[float]) -> list[float]:
    with recording("everything"):
        return values


@flow
def lengths(seconds: list[float], window: int) -> list[float]:
    return everything(takes.map(seconds, window=window))


@step
async def tick(item: int) -> int:
    return item


@step
async def count(values: list[int]) -> int:
    return len(values)


@flow
def ticks(items: list[int]) -> int:
    return count(tick.map(items))


# -- bodies the test holds -------------------------------------------------------------------------


@step
async def hold(latch: str, item: int, name: str) -> int:
    with recording(name, label=str(item)):
        await steps.until_open(latch)
    return item


@flow
def holding(latch: str, item: int = 0, name: str = "held") -> int:
    return hold(latch, item, name)


@step(needs={"role": "lone"})
async def lone(latch: str, item: int) -> int:
    with recording("lone", label=str(item)):
        await steps.until_open(latch)
    return item


@flow
def lone_holding(latch: str, item: int) -> int:
    return lone(latch, item)


@step
async def plus(value: int) -> int:
    with recording("plus"):
        return value + 1


@flow
def held_and_more(executor: str, latch: str) -> int:
    held = {
        "async": steps.held,
        "thread": steps.held_in_thread,
        "process": steps.held_in_process,
    }[executor]
    return plus(held(latch, 1, executor))


@step(retries=1, retry_delay="1ms")
def second_time(path: str) -> int:
    with recording("second_time"):
        if not Path(path).exists():
            Path(path).touch()
            raise OSError("the first time")
    return 1


@flow
def retried(path: str) -> int:
    return plus(second_time(path))


@step(needs={"role": "special"}, pool="desk")
async def special() -> int:
    with recording("special"):
        return 41


@flow
def special_and_more() -> int:
    """The first step is for a worker with the label, the second for any."""
    return plus(special())


# -- what a body can see of itself -----------------------------------------------------------------


def _own_state(url: str) -> tuple[RunState, TaskState]:
    """Its run and its task, as anybody sees them. Blocks: on the loop it holds up the whole worker."""
    job = current()
    assert job is not None
    with connect(url) as client:
        run = client.runs.get(job.run)
        return run.status(), next(task.state for task in run.tasks() if task.id == job.task)


@step
async def own_state_on_loop(url: str) -> tuple[RunState, TaskState]:
    return _own_state(url)


@step
def own_state_in_thread(url: str) -> tuple[RunState, TaskState]:
    return _own_state(url)


@step(executor="process")
def own_state_in_process(url: str) -> tuple[RunState, TaskState]:
    return _own_state(url)


@flow
def own_states(url: str) -> list[tuple[RunState, TaskState]]:
    return [own_state_on_loop(url), own_state_in_thread(url), own_state_in_process(url)]


# -- limits ----------------------------------------------------------------------------------------


@step(pool="scarce")
async def scarce(latch: str, item: int) -> None:
    with recording("all"), recording("scarce", label=str(item)):
        await steps.until_open(latch)


@step
async def free(latch: str, item: int) -> None:
    with recording("all"), recording("free", label=str(item)):
        await steps.until_open(latch)


@flow(max_parallel=8)
def eight_at_once(latch: str) -> None:
    for item in range(10):
        scarce(latch, item)
    for item in range(20):
        free(latch, item)


@step
async def link(value: int, name: str) -> int:
    with recording(name):
        return value + 1


@flow
def two_branches(latch: str) -> int:
    slow = steps.held(latch, 1)
    fast = link(link(link(0, "fast-1"), "fast-2"), "fast-3")
    return link.with_options(after=[fast])(slow, "slow-2")


@step(pools={"left": 1, "right": 1})
async def both(item: int) -> int:
    with recording("both"), recording("left"), recording("right"):
        await asyncio.sleep(0.02)
    return item


@step(pool="left")
async def left(item: int) -> int:
    with recording("left"):
        await asyncio.sleep(0.02)
    return item


@step(pools={"right": 2})
async def right(item: int) -> int:
    with recording("right", weight=2):
        await asyncio.sleep(0.02)
    return item


@flow
def mixed(count: int) -> None:
    for item in range(count):
        both(item)
        left(item)
        right(item)


@flow
def lefts(count: int) -> list[int]:
    return left.map(list(range(count)))


@flow
def rights() -> int:
    return right(1)


@step(pools={"left": 1, "narrow": 1})
async def left_and_lock(latch: str) -> None:
    with recording("left_and_lock"):
        await steps.until_open(latch)


@flow
def wants_both(latch: str) -> None:
    left_and_lock(latch)


@step(pools={"api[{tenant}]": 1})
async def api(item: int, tenant: str, latch: str) -> int:
    with recording(f"api-{tenant}"):
        await steps.until_open(latch)
    return item


@flow
def apis(count: int, tenant: str, latch: str) -> list[int]:
    return api.map(list(range(count)), tenant=tenant, latch=latch)


@step(pool="gate")
async def brief(item: int) -> int:
    with recording("brief", label=str(item)):
        await asyncio.sleep(0)
    return item


@flow
def briefs(item: int) -> int:
    return brief(brief(item))


# -- affinity --------------------------------------------------------------------------------------


@step(affinity="index")
async def warm(item: int) -> int:
    with recording("warm", label=str(item)):
        return item


@flow
def warmed(rounds: int) -> int:
    value = warm(0)
    for _ in range(rounds - 1):
        value = warm(value)
    return value


# -- claimers that are no steps: python fleet_steps.py URL FIRST COUNT --------------------------------


def claim(url: str, first: int, count: int) -> None:
    """`count` threads take the one slot of pool `narrow`, each once."""
    with connect(url) as client:

        def take(number: int) -> None:
            with client.slots("narrow", timeout="5m"), recording("narrow", label=str(number)):
                pass

        threads = [threading.Thread(target=take, args=(first + n,)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    claim(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
