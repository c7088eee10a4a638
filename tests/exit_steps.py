"""Bodies whose inner parts raise what ends a program, one per way it can reach the loop."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

from headgate import flow, step

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
    called.wait(10)
    return "done"


@flow
def exiting_in_a_thread() -> str:
    return exits_from_a_thread.with_options(after=[notes_its_loop()])()


@step
async def works(item: int) -> int:
    await asyncio.sleep(0.01)
    return item


@flow
def working(item: int) -> int:
    return works(item)
