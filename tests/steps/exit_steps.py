"""Bodies that would end their worker: whose inner parts raise what ends a program, one per way it can reach
the loop, and who cancel every task there is."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from locktender import Client, current, flow, step

FOREVER = 60.0


def interrupt() -> None:
    raise KeyboardInterrupt("not by a key")


async def _exits() -> None:
    await asyncio.sleep(0)
    sys.exit("enough")


async def in_a_task() -> None:
    task = asyncio.create_task(_exits())
    await asyncio.sleep(FOREVER)
    await task


async def awaited() -> None:
    await asyncio.create_task(_exits())


async def swallowed() -> str:
    try:
        await asyncio.create_task(_exits())
    except BaseException:  # noqa: BLE001 — even so: the task of the step fails
        return "survived"
    return "never"


async def in_a_gather() -> None:
    await asyncio.gather(asyncio.sleep(FOREVER), _exits())


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_exits())
        await asyncio.sleep(FOREVER)


async def soon() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, "enough")
    await asyncio.sleep(FOREVER)


async def later() -> None:
    asyncio.get_running_loop().call_later(0.01, sys.exit, "enough")
    await asyncio.sleep(FOREVER)


async def when_done() -> None:
    task = asyncio.create_task(asyncio.sleep(0))
    task.add_done_callback(lambda _: sys.exit("enough"))
    await asyncio.sleep(FOREVER)


async def from_a_thread() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(loop.call_soon_threadsafe, sys.exit, "enough")
    await asyncio.sleep(FOREVER)


async def interrupted() -> None:
    asyncio.get_running_loop().call_soon(interrupt)
    await asyncio.sleep(FOREVER)


async def again_and_again() -> None:
    loop = asyncio.get_running_loop()

    def exit_again(left: int) -> None:
        if left:
            loop.call_soon(exit_again, left - 1)
        sys.exit("enough")

    loop.call_soon(exit_again, 100)
    await asyncio.sleep(FOREVER)


Body = Callable[[], Awaitable[object]]
WAYS: dict[str, Body] = {
    fn.__name__: fn
    for fn in (
        in_a_task, awaited, swallowed, in_a_gather, in_a_group, soon, later, when_done,
        from_a_thread, interrupted, again_and_again,
    )
}  # fmt: skip


@step
async def exits(way: str) -> None:
    await WAYS[way]()


@flow
def exiting(way: str) -> None:
    exits(way)


async def _numbers() -> AsyncIterator[int]:
    try:
        yield 1
        yield 2
    finally:
        sys.exit("closed")


@step
async def leaves_a_generator() -> str:
    numbers = _numbers()
    await anext(numbers)
    del numbers
    await asyncio.sleep(0.05)
    return "done"


@flow
def generating() -> str:
    return leaves_a_generator()


@step
async def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()


@flow
def stopping() -> None:
    stops_the_loop()


LOOPS: list[asyncio.AbstractEventLoop] = []


@step
async def notes_its_loop() -> None:
    LOOPS[:] = [asyncio.get_running_loop()]


@step
def exits_from_a_thread() -> str:
    """The handle is made in this thread, with the context of this body."""
    called = threading.Event()

    def leave() -> None:
        called.set()
        sys.exit("enough")

    LOOPS[0].call_soon_threadsafe(leave)
    called.wait(60)
    # It is called before it has raised: the attempt learns of that a moment later.
    me, end = current(required=True), time.monotonic() + 60
    while not me.stop_requested and time.monotonic() < end:
        time.sleep(0.005)
    return "done"


@flow
def exiting_in_a_thread() -> str:
    return exits_from_a_thread.with_options(after=[notes_its_loop()])()


def others() -> list[asyncio.Task[object]]:
    return [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]


async def as_programs_do_at_their_end() -> None:
    tasks = others()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def and_itself() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


async def in_an_inner_task() -> None:
    await asyncio.create_task(as_programs_do_at_their_end())


async def what_a_body_started() -> None:
    tasks = [each for each in others() if each.get_name() == "inner"]
    assert tasks
    for task in tasks:
        task.cancel()


CANCELLINGS: dict[str, Body] = {
    fn.__name__: fn
    for fn in (as_programs_do_at_their_end, and_itself, in_an_inner_task, what_a_body_started)
}


@step
async def cancels(way: str) -> None:
    await CANCELLINGS[way]()


@flow
def cancelling(way: str) -> None:
    cancels(way)


@step
async def waits_for_an_inner_task(path: str) -> str:
    """Ends when the file is there."""

    async def look() -> str:
        while not Path(path).exists():  # noqa: ASYNC110, ASYNC240 — a test makes it
            await asyncio.sleep(0.005)
        return "seen"

    return await asyncio.create_task(look(), name="inner")


@flow
def waiting(path: str) -> str:
    return waits_for_an_inner_task(path)


@step(timeout="300ms")
async def waits_for_everything(way: str) -> None:
    if way == "together":
        await asyncio.gather(*others())
    for task in others():
        if way == "one by one" or task.get_name() == "inner":
            await task


@flow
def waiting_for_everything(way: str) -> None:
    waits_for_everything(way)


@step
async def cancels_its_own() -> str:
    mine = [asyncio.create_task(asyncio.sleep(FOREVER)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in mine:
        task.cancel()
    ends = await asyncio.gather(*mine, return_exceptions=True)
    try:
        async with asyncio.timeout(0.01):
            await asyncio.create_task(asyncio.sleep(FOREVER))
    except TimeoutError:
        return ",".join(type(each).__name__ for each in ends)
    return "never"


@flow
def cancelling_its_own() -> str:
    return cancels_its_own()


LEFT: list[asyncio.Task[None]] = []


@step
async def leaves_a_task() -> None:
    LEFT.append(asyncio.create_task(asyncio.sleep(FOREVER)))


@step
async def cancels_what_was_left() -> bool:
    task = LEFT.pop()
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


@flow
def leaving_and_cancelling() -> bool:
    return cancels_what_was_left.with_options(after=[leaves_a_task()])()


CLIENTS: list[Client] = []
CLOSED = threading.Event()


@step
def closes_its_engine() -> None:
    CLIENTS.pop().close()
    CLOSED.set()


@flow
def closing() -> None:
    closes_its_engine()


@step
async def works(item: int) -> int:
    await asyncio.sleep(0.01)
    return item


@flow
def working(item: int) -> int:
    return works(item)


@step
async def breaks_its_loop() -> None:
    """As if its selector were closed by a body: the loop itself raises, for ever."""
    loop: Any = asyncio.get_running_loop()
    loop._selector.close()
    # Such a loop cannot be closed any more: what it has open is closed here, or a later test is blamed.
    for end in (loop._ssock, loop._csock):
        end.close()
    loop._closed = True
    await asyncio.sleep(FOREVER)


@flow
def breaking() -> None:
    breaks_its_loop()


@step
async def sets_a_factory() -> int:
    loop = asyncio.get_running_loop()
    made: list[object] = []

    def make(loop: Any, coro: Any, **more: Any) -> asyncio.Task[Any]:
        made.append(asyncio.Task(coro, loop=loop, **more))
        return made[-1]  # pyright: ignore

    loop.set_task_factory(make)  # pyright: ignore
    try:
        await asyncio.create_task(asyncio.sleep(0))
    finally:
        loop.set_task_factory(None)
    return len(made)


@flow
def setting_a_factory() -> int:
    return sets_a_factory()


@step
async def blocks(path: str) -> str:
    """Ends when the file is there, and awaits nothing."""
    Path(f"{path}.begun").touch()  # noqa: ASYNC240
    while not Path(path).exists():  # noqa: ASYNC240
        time.sleep(0.005)  # noqa: ASYNC251 — the very fault
    return "seen"


@flow
def blocking(path: str) -> str:
    return blocks(path)


@step(timeout="200ms")
def overstays() -> None:
    current_attempt = current(required=True)
    while not current_attempt.stop_requested:
        time.sleep(0.005)


@flow
def overstaying() -> None:
    overstays()
