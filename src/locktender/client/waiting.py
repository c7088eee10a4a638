"""Waiting for runs to end.

Where this process leads, the engine reports the runs that its last commit
ended, and nothing is polled. Elsewhere every commit of another process may be
the one: the store's mark wakes the waiters, and a poll each second is the
fallback. A waiter registers first and reads its row after that, so an end in
between is seen by the read and a later one by the wake.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from locktender.base.background import end_tasks
from locktender.base.clock import SECOND, SystemClock
from locktender.base.durations import spoken
from locktender.base.errors import LocktenderError, NotFound, WaitTimeout
from locktender.base.model import RunRow
from locktender.base.states import TERMINAL_RUNS
from locktender.client.guard import ClientGuard
from locktender.engine import Engine
from locktender.store.protocol import Store
from locktender.store.retry import repeated

log: logging.Logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
STORE_AWAY_SECONDS = 60.0
"""How long the store may be out of reach before a waiting caller gets the error."""
MAX_WOKEN_PER_COMMIT = 200
"""Waiters that read their row after one commit of another process; the others follow after the next."""
PAUSE_PER_WAITER_SECONDS = 0.0005
"""Pause between two wake-ups, per waiter: a busy process beside this one must not make it read all the time."""


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
        """The run's row once it has ended. Raises `WaitTimeout` when the caller's patience ends first."""
        row = await self._row_again(run_id)
        if row.state in TERMINAL_RUNS:
            return row
        woken = asyncio.Event()
        self._waiters.setdefault(row.seq, []).append(woken)
        self._watch()
        try:
            async with asyncio.timeout(None if timeout_us is None else timeout_us / SECOND):
                while row.state not in TERMINAL_RUNS:
                    row = await self._row_again(run_id)
                    if row.state not in TERMINAL_RUNS:
                        await woken.wait()
                        woken.clear()
                        self._guard.check()
        except TimeoutError:
            row = await self._row_again(run_id)
            if row.state in TERMINAL_RUNS:
                return row
            raise WaitTimeout(
                f"run {run_id} is still {row.state} after {spoken(timeout_us or 0)}; it goes on.",
                field="timeout",
                got=None if timeout_us is None else timeout_us / SECOND,
                hint=f"Wait longer, or ask: locktender why {run_id}.",
            ) from None
        finally:
            self._forget(row.seq, woken)
        return row

    async def close(self) -> None:
        """Wakes every waiter: the client is closed."""
        self._wake(list(self._waiters))
        if self._watcher is not None:
            await end_tasks([self._watcher])

    async def _row(self, run_id: str) -> RunRow:
        row = await self._store.run(run_id)
        if row is None:
            raise NotFound(f"there is no run {run_id!r}.", field="run", got=run_id)
        return row

    async def _row_again(self, run_id: str) -> RunRow:
        """A store that is away for a while, as a database that restarts, does not end the wait."""
        return await repeated(
            lambda: self._row(run_id),
            f"reading run {run_id}",
            self._clock,
            self._guard.check,
            STORE_AWAY_SECONDS,
        )

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
        mark = -1
        while self._waiters:
            if self._engine is not None and self._engine.leads:
                # Nothing is read: this only notices when another process has come to lead.
                await asyncio.sleep(POLL_SECONDS)
                continue
            try:
                mark = await self._store.wait(round(POLL_SECONDS * SECOND), mark)
            except LocktenderError as error:
                log.warning("failed to wait for commits, polling: %s", error)
                await asyncio.sleep(POLL_SECONDS)
            self._wake_some()
            await asyncio.sleep(
                PAUSE_PER_WAITER_SECONDS * min(len(self._waiters), MAX_WOKEN_PER_COMMIT)
            )

    def _wake_some(self) -> None:
        turn = list(self._waiters)[:MAX_WOKEN_PER_COMMIT]
        for run in turn:
            # To the end of the line: thousands of waiters are served in turns.
            self._waiters[run] = self._waiters.pop(run)
        self._wake(turn)
