"""Questions to the leader: it answers from the ledger it decides with, between two cycles.

What waits is in its memory, in lanes: an answer about a run with 100,000 waiting items costs as much as one about
ten. From another process the question goes to it through the store (`leader/questions.py`). Without a leader, or
where little is open, the ledger is rebuilt from rows instead (`rebuilt.py`): then all that is told was true at one
instant, and the leader is not disturbed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from locktender.base.errors import LocktenderError
from locktender.base.model import Request
from locktender.store.protocol import Store

if TYPE_CHECKING:
    from locktender.kernel.scheduler import Scheduler

log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")
Question = Callable[["Scheduler", int], T | None]
"""Of a scheduler that has just decided, and the instant of that; it must take a few milliseconds at most."""
MIN_TASKS: Final = 1_000
"""Tasks of executing runs from which on the leader is asked: to rebuild so few takes some milliseconds."""
ANSWER_TIMEOUT_SECONDS: Final = 2.0
FIRST_POLL_SECONDS: Final = 0.002
LAST_POLL_SECONDS: Final = 0.01
"""An idle leader answers within some milliseconds: the pause between two looks grows by half, up to the last."""
POOLS: Final = "pools"
"""Subject of the question what is in use of each pool: no run's id, no task's number."""


class LiveLeader(Protocol):
    @property
    def open_tasks(self) -> int:
        """How many it has in memory; 0: it does not lead."""
        ...

    def ask(self, question: Question[Any]) -> asyncio.Future[Any]:
        """Answered when it has read and decided what was committed before this call; None: it does not lead."""
        ...


_leaders: WeakKeyDictionary[Store, tuple[LiveLeader, asyncio.AbstractEventLoop]] = (
    WeakKeyDictionary()
)


def leads(store: Store, leader: LiveLeader) -> None:
    """`leader` decides for `store`, on the running loop."""
    _leaders[store] = leader, asyncio.get_running_loop()


def led(store: Store) -> None:
    """No leader of this process decides for `store` any more."""
    _leaders.pop(store, None)


async def ask_leader(
    store: Store, subject: str, question: Question[T], read: Callable[[bytes], T]
) -> T | None:
    """The leader's answer; None: there is none, little is open, or it did not answer in time.

    subject  a run's id, a task's number or `POOLS`, for a leader in another process; its answer is for `read`
    """
    leader, loop = _leaders.get(store, (None, None))
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
            if leader is None or loop is not asyncio.get_running_loop():
                body = await _ask_elsewhere(store, subject)
                return read(body) if body else None
            few = leader.open_tasks < MIN_TASKS and await _few_tasks(store)
            return None if few or not leader.open_tasks else await leader.ask(question)
    except (TimeoutError, LocktenderError, msgspec.MsgspecError) as error:
        log.info("failed to ask the leader about %s: %s", subject, error)
        return None


async def _few_tasks(store: Store) -> bool:
    """To rebuild the ledger, rows of all tasks of executing runs are read, also of those that have ended."""
    return await store.executing_tasks(MIN_TASKS) < MIN_TASKS


async def _ask_elsewhere(store: Store, subject: str) -> bytes | None:
    """Of a leader in another process: the question is a request to it, and the answer is a row."""
    if await _few_tasks(store) or await store.leader() is None:
        return None
    name = token_hex(8)
    await store.ask([Request("why", subject, reason=name)])
    pause = FIRST_POLL_SECONDS
    while True:
        await asyncio.sleep(pause)
        body = await store.answer_to(name)
        if body is not None:
            return body
        pause = min(1.5 * pause, LAST_POLL_SECONDS)
