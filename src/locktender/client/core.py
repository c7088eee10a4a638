"""What all client methods share: store, settings, engine. It lives on one event loop.

`RunWaiter` waits for runs to end. Where this process leads, the engine reports the runs that its
last commit ended. Elsewhere the store does, by name where it can. Where it cannot, and about once
a second, one statement reads the states of all that are waited for.
A waiter registers first and asks for the state after that, so an end in between is seen by
the question and a later one by the wake.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from locktender.base.background import end_tasks
from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError, NotFound, StoreBusy, StoreUnreachable
from locktender.base.limits import Limits
from locktender.base.model import RunRow
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.client.outbox_rows import find_row
from locktender.client.refusals import goes_on
from locktender.client.slot_worker import SlotWorkers
from locktender.store.open import store_for
from locktender.store.protocol import SetLimit, Store
from locktender.store.retry import repeated, retry_while_away

if TYPE_CHECKING:
    from locktender.client.more_workers import MoreWorkers
    from locktender.engine import Engine
    from locktender.provision.controller import ProvisionController

T = TypeVar("T")


class ClientClosed(LocktenderError):
    """The client was closed; its runs are safe in the store and can be asked for by a new client."""

    code = "client_closed"


class ClientGuard:
    """Whether a client may still be used: not after it was closed, not in a forked child."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.closed = False

    @property
    def forked(self) -> bool:
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raises where a verb would hang or harm."""
        self.check_process()
        if self.closed:
            raise closed()

    def check_process(self) -> None:
        """Threads, locks and connections do not survive a fork."""
        if self.forked:
            raise ClientClosed(
                f"this client belongs to process {self._pid}; a forked child cannot use it.",
                hint="Open one in the child: locktender.connect().",
            )


def closed() -> ClientClosed:
    return ClientClosed(
        "this client is closed.", hint="Open a new one, or do the call inside its with block."
    )


log: logging.Logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
SUBMITTED_POLL_SECONDS = 0.02
STORE_AWAY_SECONDS = 60.0
"""How long the store may be out of reach before a waiting caller gets the error."""
FIRST_OPEN_PAUSE_SECONDS = 0.5
LONGEST_OPEN_PAUSE_SECONDS = 10.0
"""Between two tries of a server or worker to open a store that does not answer."""
MAX_STATES = 1_000
"""Runs whose states one statement reads."""
PAUSE_SECONDS = 0.002
PAUSE_PER_WAITER_SECONDS = 0.000_005
"""Pauses between two looks: a busy process beside this one must not make it read all the time."""


class RunWaiter:
    def __init__(self, store: Store, engine: Engine | None, guard: ClientGuard) -> None:
        self._store = store
        self._engine = engine
        self._guard = guard
        self._clock = SystemClock()
        self._waiters: dict[int, list[asyncio.Event]] = {}
        self._watcher: asyncio.Task[None] | None = None
        if engine is not None:
            engine.on_runs_ended(self._wake)

    async def until_ended(self, run_id: str, timeout_us: int | None) -> RunRow:
        """The run's row once it has ended. Raises `WaitTimeout` when `timeout_us` passes first."""
        until = None if timeout_us is None else self._clock.monotonic() + timeout_us
        row = await self._row_again(run_id)
        while row.state == RunState.SUBMITTED and (
            until is None or self._clock.monotonic() < until
        ):
            # Nobody is told when the leader makes a run of it.
            await asyncio.sleep(SUBMITTED_POLL_SECONDS)
            self._guard.check()
            row = await self._row_again(run_id)
        if row.state in TERMINAL_RUNS:
            return row
        run_id, seq, woken = row.id, row.seq, asyncio.Event()
        self._waiters.setdefault(seq, []).append(woken)
        self._watch()
        left_us = None if until is None else max(0, until - self._clock.monotonic())
        try:
            async with asyncio.timeout(None if left_us is None else left_us / SECOND):
                while row.state not in TERMINAL_RUNS:
                    if not await self._again(lambda: self._ended([seq]), run_id):
                        await woken.wait()
                        woken.clear()
                        self._guard.check()
                    row = await self._row_again(run_id)
        except TimeoutError:
            row = await self._row_again(run_id)
            if row.state in TERMINAL_RUNS:
                return row
            raise goes_on(run_id, row.state, timeout_us) from None
        finally:
            self._forget(seq, woken)
        return row

    async def until_any(self, runs: Sequence[int], timeout_us: int) -> dict[int, str]:
        """Those of these runs that have ended, and how ("": it is gone); none when `timeout_us` has passed."""
        woken = asyncio.Event()
        for run in runs:
            self._waiters.setdefault(run, []).append(woken)
        self._watch()
        try:
            async with asyncio.timeout(timeout_us / SECOND):
                while not (ended := await self._ended(runs)):
                    await woken.wait()
                    woken.clear()
                    self._guard.check()
        except TimeoutError:
            return {}
        finally:
            for run in runs:
                self._forget(run, woken)
        return ended

    async def close(self) -> None:
        """Wakes every waiter: the client is closed."""
        self._wake(list(self._waiters))
        if self._watcher is not None:
            await end_tasks([self._watcher])

    async def _row(self, run_id: str) -> RunRow:
        row = await find_row(self._store, run_id)
        if row is None:
            raise NotFound(f"there is no run {run_id!r}.", field="run", got=run_id)
        return row

    async def _row_again(self, run_id: str) -> RunRow:
        return await self._again(lambda: self._row(run_id), run_id)

    async def _again(self, read: Callable[[], Awaitable[T]], run_id: str) -> T:
        """A store that is away for a while, as a database that restarts, does not end the wait."""
        return await repeated(
            read, f"reading run {run_id}", self._clock, self._guard.check, STORE_AWAY_SECONDS
        )

    async def _ended(self, runs: Sequence[int]) -> dict[int, str]:
        """Those of these runs that have ended, and how; "": it is gone."""
        states = await self._store.run_states(runs)
        found = {run: states.get(run) or "" for run in runs}
        return {run: state for run, state in found.items() if not state or state in TERMINAL_RUNS}

    def _wake(self, runs: Iterable[int]) -> None:
        for run in runs:
            for woken in self._waiters.get(run, ()):
                woken.set()

    def _forget(self, run: int, woken: asyncio.Event) -> None:
        waiters = self._waiters[run]
        waiters.remove(woken)
        if not waiters:
            del self._waiters[run]

    def _watch(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._follow(), name="locktender-waiting")

    async def _follow(self) -> None:
        clock = asyncio.get_running_loop().time
        looked = clock()
        while self._waiters:
            try:
                if self._engine is not None and self._engine.leads:
                    # The leader names the runs that it ends, unless its term ends before it can.
                    await asyncio.sleep(POLL_SECONDS)
                    look = True
                else:
                    ended = await self._store.wait_for_ends(round(POLL_SECONDS * SECOND))
                    self._wake(ended.runs)
                    look = ended.look
                # Also while others' ends are named without pause: a notification may be lost.
                if look or clock() - looked >= POLL_SECONDS:
                    await self._read_ended()
                    looked = clock()
            except Exception as error:
                if isinstance(error, LocktenderError):
                    log.warning("failed to wait for ends of runs, polling: %s", error)
                else:
                    log.exception("failed to wait for ends of runs, polling: internal error")
                # Each reads its row by itself, and raises when the store stays away.
                self._wake(self._waiters)
                await asyncio.sleep(POLL_SECONDS)

    async def _read_ended(self) -> None:
        runs = list(self._waiters)
        for first in range(0, len(runs), MAX_STATES):
            self._wake(await self._ended(runs[first : first + MAX_STATES]))
        await asyncio.sleep(PAUSE_SECONDS + PAUSE_PER_WAITER_SECONDS * len(self._waiters))


class Core:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        engine: Engine | None,
        guard: ClientGuard | None = None,
        more: MoreWorkers | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.engine = engine
        self.guard: ClientGuard = guard or ClientGuard()
        self._limits_read: list[tuple[int, Limits]] = []
        self.version: str | None = None
        self.only: Mapping[str, str] = {}
        self.acts_for_another = False
        self.token: str | None = None
        self.reason: str = ""
        self._more = more
        self._hurried = asyncio.Event()
        self.clock: Clock = SystemClock()
        self.waiting: RunWaiter = RunWaiter(store, engine, self.guard)
        leases = None if engine is None else engine.leases
        self.holders: SlotWorkers = SlotWorkers(lambda: store_for(settings), self.clock, leases)

    @classmethod
    async def open(
        cls,
        settings: Settings,
        *,
        engine: bool,
        guard: ClientGuard | None = None,
        lead: bool = True,
        work: bool = True,
        overflow: ProvisionController | None = None,
        more: MoreWorkers | None = None,
        ends_itself: bool = False,
        waits: bool = False,
        creates: bool = True,
        brief: bool = False,
    ) -> Core:
        """A store that is open and, if asked for, an engine that has its lease.

        `more` is closed with it; the caller closes `overflow`. `ends_itself`: as `Engine` has it; `creates` and
        `brief`: as `Store.open` does. `waits`: tries for ever while the store cannot be reached.
        """
        if more is not None:
            overflow = more.overflow
        store = store_for(settings)
        await retry_while_away(
            lambda: store.open(migrates=engine, creates=creates, brief=brief),
            "opening the store",
            lambda error: waits and isinstance(error, StoreUnreachable | StoreBusy),
            first_pause_seconds=FIRST_OPEN_PAUSE_SECONDS,
            longest_pause_seconds=LONGEST_OPEN_PAUSE_SECONDS,
        )
        running: Engine | None = None
        try:
            if engine:
                # Only here: it loads leader, worker and kernel, which a client of a store does without.
                from locktender.engine import Engine

                running = Engine(
                    store,
                    settings,
                    lead=lead,
                    work=work,
                    overflow=overflow,
                    ends_itself=ends_itself,
                )
                await running.start()
        except BaseException:
            if running is not None:
                with suppress(LocktenderError):
                    await running.stop(0)
            if more is not None:
                await more.close(0)
            await store.close()
            raise
        return cls(store, settings, running, guard, more)

    async def close(self, grace_us: int | None = None, more: MoreWorkers | None = None) -> None:
        """Drains the engine, if there is one, and closes the store. Again: nothing.

        `more`: workers that were its engine's `overflow`, to be closed now while there is a store.
        """
        if self.guard.closed or self.guard.forked:
            return
        self.guard.closed = True
        self._more = self._more or more
        # In no attempt's context: a body may close a client, but may not cancel what others have started.
        await asyncio.get_running_loop().create_task(self._close(grace_us), context=Context())

    async def _close(self, grace_us: int | None) -> None:
        try:
            await self.waiting.close()
            await self.holders.close()
            # Together: theirs is the same grace.
            await asyncio.gather(self._stop(grace_us), self._close_workers(grace_us))
        except asyncio.CancelledError:
            if self.engine is not None:
                await self.engine.stop(0)
            raise
        finally:
            await self.store.close()

    def hurry(self) -> None:
        """Ends the wait of `close`: running tasks are ended and return to the queue."""
        self._hurried.set()

    async def _stop(self, grace_us: int | None) -> None:
        engine = self.engine
        if engine is not None and not await self._unless_hurried(engine.stop(grace_us)):
            await engine.stop(0)

    async def _close_workers(self, grace_us: int | None) -> None:
        if self._more is not None:
            await self._unless_hurried(self._more.close(grace_us))

    async def _unless_hurried(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether `work` was done to its end; it is cancelled by `hurry`."""
        doing = asyncio.create_task(work)
        hurried = asyncio.create_task(self._hurried.wait())
        try:
            await asyncio.wait({doing, hurried}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Read before they are ended: a cancelled task is done too.
            done = doing.done()
            await end_tasks([hurried] if done else [hurried, doing])
        if done:
            await doing
        return done

    @property
    def limits_read(self) -> tuple[int, Limits] | None:
        """The limits as they were last read, and when: see `submit.check_pools`. Who acts for others shares it."""
        return self._limits_read[-1] if self._limits_read else None

    @limits_read.setter
    def limits_read(self, read: tuple[int, Limits] | None) -> None:
        self._limits_read[:] = [] if read is None else [read]

    def changed(self) -> None:
        """Something was committed here: wakes the leader, if it is this process."""
        if self.engine is not None:
            self.engine.wake()

    async def leader(self) -> bool:
        """Whether there is a leader to carry out a request."""
        return await self.store.leader() is not None

    async def row(self, run_id: str) -> RunRow:
        row = await find_row(self.store, run_id)
        if row is None:
            raise NotFound(
                f"there is no run {run_id!r} in {self.settings.shown_url}.",
                field="run",
                got=run_id,
                hint="locktender runs list shows what there is; --url names another store.",
            )
        return row

    def acting(
        self,
        who: str,
        version: str | None = None,
        only: Mapping[str, str] | None = None,
        reason: str = "",
        token: str | None = None,
    ) -> Core:
        """The same for changes by `who`, which is recorded with each. It must not be closed.

        version  that a limit must have for a change of it to be stored
        only     tags of schedules that may be changed; default all
        reason   kept with changes of limits; default none
        token    id of the token that `who` has: those that are made are revoked with it
        """
        other = copy(self)
        other.who, other.version, other.acts_for_another = who, version, True
        other.only, other.reason, other.token = only or self.only, reason, token or self.token
        return other

    async def set_limits(self, changes: list[SetLimit]) -> None:
        """Stores changes of limits and wakes the leader. Raises `LimitChanged`."""
        if self.version is not None:
            last = changes[-1]
            changes = [
                msgspec.structs.replace(each, version=self.version)
                if (each.kind, each.name) == (last.kind, last.name)
                else each
                for each in changes
            ]
        if self.reason:
            changes = [msgspec.structs.replace(each, reason=self.reason) for each in changes]
        await self.store.set_limit(changes)
        self.limits_read = None
        self.changed()

    @cached_property
    def who(self) -> str:
        """user@host, for the history of limits."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError, ImportError):  # a container without a passwd entry
            user = "unknown"
        return f"{user}@{socket.gethostname()}"
