"""A process that serves until it is told to stop: what `server` and `worker` share.

The first SIGTERM or SIGINT drains: no new tasks, what runs may finish within
`grace`, the rest is handed back and no attempt is charged. The second does not
wait. With `--with-parent` the end of standard input counts as the first: a
process that somebody started must not outlive them unknown. A worker that ends
by itself has no such hurry: what it runs may finish, and `grace` begins only if
a signal comes meanwhile. A signal that the
loop does not hear, because a step holds it, ends the process hard (`last_resort`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from types import FrameType

from locktender.base.clock import SystemClock
from locktender.base.config import Settings
from locktender.base.errors import InvalidInput
from locktender.cli.last_resort import LastResort
from locktender.client.core import Core
from locktender.client.more_workers import MoreWorkers
from locktender.stages.chores import end_tasks

log: logging.Logger = logging.getLogger(__name__)


class Told:
    """How often this process was asked to end, and by what."""

    def __init__(self) -> None:
        self.why: str = ""
        self.last_resort: LastResort = LastResort(SystemClock())
        self._first = asyncio.Event()
        self._second = asyncio.Event()

    def listen(self, *, with_parent: bool) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._heard, signal.Signals(number).name)
            # In the place of asyncio's own, which does nothing: the loop hears of it by another way.
            signal.signal(number, self._signalled)
            signal.siginterrupt(number, False)
        self.last_resort.start()
        if with_parent:
            try:
                loop.add_reader(0, self._read)
            except PermissionError:  # a file or /dev/null: it says nothing about anybody's end
                raise InvalidInput(
                    "--with-parent needs standard input to be a pipe.",
                    field="with_parent",
                    hint="Leave it out: SIGTERM ends the process.",
                ) from None

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self.last_resort.signalled()

    def _heard(self, why: str) -> None:
        self.last_resort.heard()
        self.end(why)

    def end(self, why: str) -> None:
        if self._first.is_set():
            self._second.set()
        else:
            self.why = why
            self._first.set()

    def _read(self) -> None:
        if not os.read(0, 4096):
            asyncio.get_running_loop().remove_reader(0)
            self.by_itself("whoever started it has gone")

    def by_itself(self, why: str) -> None:
        """Nobody asked: it is never the second time, which would not wait."""
        if not self._first.is_set():
            self.end(why)

    async def once(self) -> None:
        await self._first.wait()

    async def twice(self) -> None:
        await self._second.wait()


async def serve(
    settings: Settings,
    told: Told,
    ready: Callable[[Core], Awaitable[None]],
    *,
    lead: bool,
    work: bool,
    more: MoreWorkers | None = None,
) -> None:
    """Open, say so with `ready`, serve until told, drain."""
    told.last_resort.grace_us = settings.grace_us
    core = await Core.open(settings, engine=True, lead=lead, work=work, more=more, ends_itself=True)
    if core.engine is not None and (member := core.engine.member) is not None:
        told.last_resort.unheard, told.last_resort.ending = member.told_to_end, member.ends_hard
    beside = [asyncio.create_task(_hurry(core, told)), asyncio.create_task(_outlive(core, told))]
    try:
        await ready(core)
        await told.once()
    finally:
        try:
            await core.close(told.last_resort.grace_left())
            await end_tasks(beside)
        finally:
            told.last_resort.over()


async def _hurry(core: Core, told: Told) -> None:
    await told.twice()
    core.hurry()


async def _outlive(core: Core, told: Told) -> None:
    """A worker that was idle for too long, is too old, or ran enough tasks ends itself, when nothing runs."""
    member = None if core.engine is None else core.engine.member
    if member is not None and member.lifetime.bounded:
        why = await member.lifetime.passed(lambda: member.worker.in_flight)
        log.info("%s: it ends when nothing runs any more", why)
        # First: a task that outlasts the grace would be handed back by every worker it comes to.
        await member.retire()
        told.by_itself(why)
