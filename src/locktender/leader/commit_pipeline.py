"""Commits that are being written: the leader decides the next cycle while the last one is on its way.

They are written in the order in which they were decided: the store takes a commit only after the one it names
as its predecessor, so one that failed (a full disk) and is tried again cannot be overtaken. What a cycle
decided is acted on when its own commit is written, never before, and in the same order: an attempt must not be
stopped before it is started.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial

from locktender.base.changes import End
from locktender.base.clock import SystemClock
from locktender.base.commits import Commit
from locktender.base.errors import NotLeader, OutOfOrder
from locktender.kernel.commit_builder import Cycle
from locktender.observe.metrics import Metrics
from locktender.store.protocol import Store
from locktender.store.readable import is_fault
from locktender.store.retry import repeated

MAX_UNWRITTEN = 1
"""Commits on their way beside the newest one. With more, each brings less: thread steps with 8 permits came to
4,000 a second with four, and to 4,700 with one."""
SUMMARY_EVERY_SECONDS = 1.0
_CLOCK = SystemClock()
log: logging.Logger = logging.getLogger(__name__)


class CommitRefused(Exception):
    """The store takes a commit at no time: for its data, not because it is away."""

    def __init__(self, commit: Commit, cause: Exception) -> None:
        super().__init__(f"cycle {commit.cycle} was refused: {cause}")
        self.commit = commit
        self.cause = cause
        self.parts: list[str] = []
        """Where no run is to blame: which of its parts are refused, by the name of their field."""

    def __str__(self) -> str:
        blamed = f" (no run is to blame; refused: {', '.join(self.parts)})" if self.parts else ""
        return f"{super().__str__()}{blamed}"


class CommitPipeline:
    def __init__(
        self,
        store: Store,
        act: Callable[[Cycle], None],
        take_back: Callable[[Cycle], Awaitable[None]],
        changed: Callable[[], None],
        metrics: Metrics,
    ) -> None:
        self.answered: int = -1
        """The last cycle whose commit the store has answered."""
        self._store = store
        self._act = act
        self._take_back = take_back
        self._changed = changed
        self._metrics = metrics
        self._writes: dict[asyncio.Task[None], tuple[list[End], list[tuple[int, int]]]] = {}
        """In their order, each with the ends and the starts of this process that its commit writes."""
        self._last_acted: asyncio.Future[None] | None = None
        """Of the last cycle sent: done when it is acted on."""
        self._broken: BaseException | None = None
        self._closing = False

    async def send(self, cycle: Cycle, ends: list[End], began: float) -> None:
        """Write `cycle` and act on it; `ends` are the attempts whose end goes with it.

        `began`: when the cycle did, on the loop's clock.
        """
        self.check()
        loop = asyncio.get_running_loop()
        before, acted = self._last_acted, loop.create_future()
        self._last_acted = acted
        task = loop.create_task(self._write(cycle, ends, began, before, acted))
        starts = [(entry.id, entry.token) for entry in cycle.starts]
        self._writes[task] = ends, starts
        while len(self._writes) > MAX_UNWRITTEN:
            await asyncio.wait([next(iter(self._writes))])
            self.check()

    def check(self) -> None:
        """Raises the error that a write ended with."""
        if self._broken is not None:
            raise self._broken

    async def drain(self) -> None:
        """Returns when everything sent has been written and acted on."""
        while self._writes and self._broken is None:
            await asyncio.wait([next(iter(self._writes))])
        self.check()

    @property
    def idle(self) -> bool:
        return not self._writes

    def close(self) -> None:
        """Do not wait for a store that cannot be written."""
        self._closing = True

    def unwritten(self) -> list[End]:
        """Ends whose commit was not written. Called from any thread."""
        return [end for ends, _ in list(self._writes.values()) for end in ends]

    def unstarted(self) -> list[tuple[int, int]]:
        """Attempts of this process whose commit may be written, though it was not acted on."""
        return [start for _, starts in list(self._writes.values()) for start in starts]

    async def stop(self) -> None:
        for task in self._writes:
            task.cancel()
        if self._writes:
            await asyncio.wait(self._writes)

    async def _write(
        self,
        cycle: Cycle,
        ends: list[End],
        began: float,
        before: asyncio.Future[None] | None,
        acted: asyncio.Future[None],
    ) -> None:
        try:
            if not cycle.commit.empty:
                sent = asyncio.get_running_loop().time()
                await self._commit(cycle.commit)
                written = asyncio.get_running_loop().time()
                self._metrics.commits.add(written - sent)
                self._metrics.cycle(cycle, written - began)
            ends.clear()
            # The answer to the commit before it may come later than this one's, and an empty one has none.
            if before is not None:
                await before
            self._act(cycle)
            acted.set_result(None)
            await self._take_back(cycle)
        except Exception as error:  # noqa: BLE001 — any error ends the term; the leader raises it
            self._broken = self._broken or error
            self._changed()
            return
        # Its own entry: one before it may still be taking offers back.
        task = asyncio.current_task()
        if task is not None:
            self._writes.pop(task, None)

    async def _commit(self, commit: Commit) -> None:
        """Write it; while the store cannot be written the same commit is tried again."""
        await repeated(partial(self._try, commit), "the commit", _CLOCK, self._check_open, math.inf)
        self.answered = max(self.answered, commit.cycle)

    async def _try(self, commit: Commit) -> None:
        try:
            await self._store.commit(commit)
        except OutOfOrder as error:
            if commit.previous <= self.answered:
                raise lost_cycle(self.answered) from error
            raise
        except Exception as error:
            if is_fault(error):
                raise CommitRefused(commit, error) from error
            raise

    def _check_open(self) -> None:
        if self._closing:
            raise NotLeader("closed while the store could not be written")


class CycleSummary:
    """One line in the log per busy cycle, at most one a second."""

    def __init__(self) -> None:
        self._logged_at = 0.0

    def log(self, cycle: Cycle, demand: int) -> None:
        now = asyncio.get_running_loop().time()
        commit = cycle.commit
        if now - self._logged_at < SUMMARY_EVERY_SECONDS or commit.empty:
            return
        self._logged_at = now
        log.info(
            "cycle %s: %s runs and %s tasks started, %s runs ended, blocked %s, demand %s",
            commit.cycle,
            len(commit.runs_started),
            len(cycle.starts) + sum(order.kind == "offer" for order in commit.orders),
            len(commit.runs_ended),
            cycle.found_waiting or "none",
            demand,
        )


def lost_cycle(cycle: int) -> NotLeader:
    """The store lost a commit that it had answered and not flushed: what was decided on it is void."""
    return NotLeader(f"the store has lost cycle {cycle}: the leader reads everything again")
