"""Waits for runs to end.

Where this process leads, the engine reports the runs that its last commit ended. Elsewhere the
store does, by name where it can. Where it cannot, and about once a second, one statement reads the
states of all that are waited for. To be told may cost everybody: PostgreSQL wakes each connection that
listens whenever anybody commits. So a client is told for some seconds after a wait began or its run
ended, and after that looks now and then.

A waiter registers first and asks for the state after that, so an end in between is seen by
the question and a later one by the wake. Then it reads the row: once, since a row may have a large map in it.
Where this process led when the run ended, and had submitted it, its row is not read then: the leader's commit
has its outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from locktender.base.background import end_tasks
from locktender.base.clock import MILLISECOND, SECOND, SystemClock
from locktender.base.errors import LocktenderError, NotFound, StoreError
from locktender.base.model import RunRow
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.client.guard import ClientGuard
from locktender.client.outbox_rows import find_row
from locktender.client.refusals import goes_on
from locktender.store.protocol import Store
from locktender.store.retry import repeated

if TYPE_CHECKING:
    from locktender.base.commits import RunEnd
    from locktender.engine import Engine

T = TypeVar("T")

log: logging.Logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
SUBMITTED_POLL_SECONDS = 0.02
STORE_AWAY_SECONDS = 60.0
"""How long the store may be out of reach before a waiting caller gets the error."""
LAST_READ_SECONDS = 2.0
"""How long the last read of a wait whose time is over may take."""
MAX_STATES = 1_000
"""Runs whose states one statement reads."""
ATTENTIVE_SECONDS = 5.0
"""So long after a wait began, or its run ended, a client waits to be told."""
QUIET_SHARE = 0.05
"""After that, where to be told costs others something, it looks when it has waited for this much longer,
and each `POLL_SECONDS` at least."""
PAUSE_SECONDS = 0.002
PAUSE_PER_WAITER_SECONDS = 0.000_005
"""Pauses between two looks: a busy process beside this one must not make it read all the time."""


NEW_US = MILLISECOND
"""A run that was submitted a shorter time ago can hardly have ended."""
FIRST_READ_AFTER_SECONDS = 0.02
"""The state of such a run is first read after this time."""
MAX_UNCLAIMED = 1_000
"""Ended runs without a waiter that are remembered: a busy program may begin to wait after the end."""


class RunSubmission(NamedTuple):
    """Of a run that this process has submitted."""

    seq: int
    made_us: int
    """When the store had answered that it made the run, by the boot-time clock; 0: it was there before."""
    flow: str = ""
    graph: str = ""
    """Its graph, if it keeps that one until it ends; "": not known here."""


class RunOutcome(msgspec.Struct, frozen=True, gc=False):
    """A run that has ended: what its result or its error is made of."""

    id: str
    seq: int
    flow: str
    graph: str
    state: str
    output: bytes | None
    error: bytes | None

    @classmethod
    def of(cls, row: RunRow) -> RunOutcome:
        return cls(row.id, row.seq, row.flow, row.graph, row.state, row.output, row.error)


class _Wait(asyncio.Event):
    """Set when its run has ended, or may have."""

    end: RunEnd | None = None
    """How it ended, where this process led then: its row need not be read."""


class RunWaiter:
    def __init__(self, store: Store, engine: Engine | None, guard: ClientGuard) -> None:
        self._store = store
        self._engine = engine
        self._guard = guard
        self._clock = SystemClock()
        self._waiters: dict[int, list[_Wait]] = {}
        self._unclaimed: deque[int] = deque(maxlen=MAX_UNCLAIMED)
        self._watcher: asyncio.Task[None] | None = None
        self._stirred_at = 0.0
        """When a wait last began, or its run ended, by the loop's clock."""
        self._came = asyncio.Event()
        if engine is not None:
            engine.on_runs_ended(self._end)

    async def until_ended(
        self, run_id: str, timeout_us: int | None, submission: RunSubmission | None = None
    ) -> RunOutcome:
        """The run once it has ended. Raises `WaitTimeout` when `timeout_us` passes first.

        `submission`: the caller submitted it.
        """
        row: RunRow | None = None
        seq = 0 if submission is None else submission.seq
        try:
            async with asyncio.timeout(None if timeout_us is None else timeout_us / SECOND):
                if not seq:
                    row = await self._row_again(run_id)
                    while row.state == RunState.SUBMITTED:
                        # Nobody is told when the leader makes a run of it.
                        await asyncio.sleep(SUBMITTED_POLL_SECONDS)
                        self._guard.check()
                        row = await self._row_again(run_id)
                    run_id, seq = row.id, row.seq  # what was given may be the beginning of an id
                elif submission is not None and not self._is_new(submission):
                    # Of a run that has ended nothing more is read; of another its row is read once.
                    row = await self._row_again(run_id)
                while row is None or row.state not in TERMINAL_RUNS:
                    is_new = row is None and submission is not None and self._is_new(submission)
                    end = await self._until_ended(run_id, seq, is_new=is_new)
                    # The end of an earlier try than the one that was found queued ends nothing.
                    current = end is not None and (row is None or end.ended_at > row.queued_at)
                    if end is not None and current and submission is not None and submission.graph:
                        flow, graph = submission.flow, submission.graph
                        return RunOutcome(
                            run_id, seq, flow, graph, end.state, end.output, end.error
                        )
                    row = await self._row_again(run_id)
                return RunOutcome.of(row)
        except TimeoutError:
            row = await self._last_row(run_id, row, submission)
            if row is not None and row.state in TERMINAL_RUNS:
                return RunOutcome.of(row)
            state = RunState.QUEUED if row is None else row.state
            raise goes_on(run_id, state, timeout_us) from None

    async def _last_row(
        self, run_id: str, known: RunRow | None, submission: RunSubmission | None
    ) -> RunRow | None:
        """The row when the time is over. Where the store does not answer, as it was last read; None: never, since
        it was submitted here."""
        try:
            async with asyncio.timeout(LAST_READ_SECONDS):
                return await self._row(run_id)
        except (StoreError, TimeoutError) as error:
            if known is not None or submission is not None:
                return known
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"run {run_id} cannot be read: the store does not answer.") from error

    def _is_new(self, submission: RunSubmission) -> bool:
        """Whether the run can hardly have ended by now."""
        return self._clock.monotonic() - submission.made_us < NEW_US

    async def _until_ended(self, run_id: str, seq: int, *, is_new: bool) -> RunEnd | None:
        """Returns when the run has ended, or all waiters were woken: how, or None, and the caller reads the row.

        Of a new one no state is read at first: that would take time from those who are about to start it.
        """
        # Register, then ask: see above.
        woken = _Wait()
        self._guard.check()
        self._waiters.setdefault(seq, []).append(woken)
        self._watch()
        try:
            if is_new and seq in self._unclaimed:
                return None
            if is_new:
                with suppress(TimeoutError):
                    async with asyncio.timeout(FIRST_READ_AFTER_SECONDS):
                        await woken.wait()
            if not woken.is_set() and not await self._again(
                lambda: self._ended([seq]), f"run {run_id}"
            ):
                await woken.wait()
            self._guard.check()
            return woken.end
        finally:
            self._forget(seq, woken)

    async def until_any(self, runs: Sequence[int], timeout_us: int) -> dict[int, str]:
        """Those of these runs that have ended, and how ("": it is gone); none when `timeout_us` has passed."""
        woken = _Wait()
        self._guard.check()
        for run in runs:
            self._waiters.setdefault(run, []).append(woken)
        self._watch()
        try:
            async with asyncio.timeout(timeout_us / SECOND):
                while not (
                    ended := await self._again(lambda: self._ended(runs), "the states of runs")
                ):
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
        self._wake_all()
        if self._watcher is not None:
            await end_tasks([self._watcher])

    async def _row(self, run_id: str) -> RunRow:
        row = await find_row(self._store, run_id)
        if row is None:
            raise NotFound(f"there is no run {run_id!r}.", field="run", got=run_id)
        return row

    async def _row_again(self, run_id: str) -> RunRow:
        return await self._again(lambda: self._row(run_id), f"run {run_id}")

    async def _again(self, read: Callable[[], Awaitable[T]], what: str) -> T:
        """A store that is away for a while, as a database that restarts, does not end the wait."""
        return await repeated(
            read, f"reading {what}", self._clock, self._guard.check, STORE_AWAY_SECONDS
        )

    async def _ended(self, runs: Sequence[int]) -> dict[int, str]:
        """Those of these runs that have ended, and how; "": it is gone."""
        states = await self._store.run_states(runs)
        found = {run: states.get(run) or "" for run in runs}
        return {run: state for run, state in found.items() if not state or state in TERMINAL_RUNS}

    def _end(self, ends: Iterable[RunEnd]) -> None:
        """The commit that ends these runs is written."""
        for end in ends:
            for woken in self._waiters.get(end.run, ()):
                woken.end = end
        self._wake(end.run for end in ends)

    def _wake(self, runs: Iterable[int]) -> None:
        """Those who wait for these runs go on; where they were not given an end they read the row."""
        for run in runs:
            waiters = self._waiters.get(run)
            if waiters is None:
                self._unclaimed.append(run)
                continue
            for woken in waiters:
                woken.set()
            self._stirred_at = asyncio.get_running_loop().time()

    def _wake_all(self) -> None:
        for waiters in self._waiters.values():
            for woken in waiters:
                woken.set()

    def _forget(self, run: int, woken: _Wait) -> None:
        waiters = self._waiters[run]
        waiters.remove(woken)
        if not waiters:
            del self._waiters[run]

    def _watch(self) -> None:
        self._stirred_at = asyncio.get_running_loop().time()
        self._came.set()
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._follow(), name="locktender-waiting")

    async def _follow(self) -> None:
        clock = asyncio.get_running_loop().time
        looked = clock()
        while True:
            self._came.clear()
            quiet = clock() - self._stirred_at
            try:
                looks = quiet > ATTENTIVE_SECONDS and await self._store.forget_ends()
                if not self._waiters:
                    if quiet > ATTENTIVE_SECONDS:
                        return
                    # The next wait may begin at once: it need not begin to listen anew.
                    await self._rest(POLL_SECONDS)
                    continue
                if self._engine is not None and self._engine.leads:
                    # The leader names the runs that it ends, unless its term ends before it can.
                    await asyncio.sleep(POLL_SECONDS)
                    look = True
                elif looks:
                    await self._rest(min(POLL_SECONDS, quiet * QUIET_SHARE))
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
                if not self._waiters and quiet > ATTENTIVE_SECONDS:
                    return
                # Each reads its row by itself, and raises when the store stays away.
                self._wake_all()
                await asyncio.sleep(POLL_SECONDS)

    async def _rest(self, seconds: float) -> None:
        """Until a wait begins, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._came.wait()

    async def _read_ended(self) -> None:
        runs = list(self._waiters)
        for first in range(0, len(runs), MAX_STATES):
            self._wake(await self._ended(runs[first : first + MAX_STATES]))
        await asyncio.sleep(PAUSE_SECONDS + PAUSE_PER_WAITER_SECONDS * len(self._waiters))
