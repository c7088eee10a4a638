"""Retention: the leader deletes runs that ended long ago, in short slices beside its cycles.

Once a minute it looks for such runs, and goes on as long as there are more.
Between two slices it pauses, so that pruning takes a quarter of the time in
which commits can be written, half of it when it falls behind.

The history is checked before any of it goes. That takes long, so it is not
done in the leader's process: a child does it (`locktender db checkpoint`), at
most once an hour, and only while something waits to be pruned. It also removes
events of no run that nothing needs any more. Runs that ended since the last
checkpoint wait for the next one. Where the history breaks
a promise nothing is pruned until an operator has run `locktender audit`, then
`locktender db prune --force`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from locktender.base.background import to_its_end
from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError
from locktender.base.events import NO_RUN
from locktender.observe.checkpoint import marks
from locktender.store.protocol import EventFilter, Store
from locktender.store.pruning import Prune, sweep

log: logging.Logger = logging.getLogger(__name__)
PRUNE_EVERY_US = 60 * SECOND
CHECK_EVERY_US = 3_600 * SECOND
MIN_RUNS_PER_SLICE, MAX_RUNS_PER_SLICE = 10, 1_000
SHORT_SLICE_US, LONG_SLICE_US = 10_000, 50_000
"""A slice that took less grows, one that took more shrinks: on SQLite no other process can write meanwhile."""
MAX_SLICES_LOOKED_AT = 20
OLD_ROWS_WORTH_A_CHECK = 1_000
"""So many old events that belong to no run are worth a check."""
CHECK_TIMEOUT_SECONDS = 1_800.0
UNCHECKED = 2**62

Check = Callable[[int], Awaitable[bool]]
"""Checks the history, writes a checkpoint, and removes rows of no run from before an instant; whether all was
kept."""


class PruneSlices:
    """How many runs the next slice looks at, and the pause before it."""

    def __init__(self) -> None:
        self.runs: int = 100

    def pause_us(self, took_us: int, *, behind: bool) -> int:
        if took_us > LONG_SLICE_US:
            self.runs = max(MIN_RUNS_PER_SLICE, self.runs // 2)
        elif took_us < SHORT_SLICE_US:
            self.runs = min(MAX_RUNS_PER_SLICE, self.runs * 2)
        return took_us if behind else 3 * took_us


class Retention:
    """`due()` costs nothing; `work()` prunes what may go now. Only the leader runs it, one at a time."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        who: str,
        *,
        clock: Clock | None = None,
        check: Check | None = None,
    ) -> None:
        self._store = store
        self._retention_us = settings.retention_us
        self._who = who
        self._clock: Clock = SystemClock() if clock is None else clock
        self._check: Check = check or _InAChild(settings.url).check
        self._next = self._clock.monotonic() + PRUNE_EVERY_US
        self._next_check = self._clock.monotonic()
        self._checked: int | None = None
        """The seq of a checkpoint that found all kept; None: not known yet."""
        self._slices = PruneSlices()
        self._after = 0
        self._left_behind = False
        self._working = False

    def due(self) -> bool:
        due = self._retention_us is not None and self._clock.monotonic() >= self._next
        return due and not self._working

    async def work(self) -> int:
        """Prunes what may go now; how many runs went. Never raises what the store or the child runs into."""
        if self._retention_us is None or self._working:
            return 0
        self._next = self._clock.monotonic() + PRUNE_EVERY_US
        self._working = True
        try:
            return await self._work(await self._store.now() - self._retention_us)
        except LocktenderError as error:
            log.warning("failed to prune: %s", error)
            return 0
        finally:
            self._working = False

    async def _work(self, before: int) -> int:
        gone = await self._prune(before)
        if gone:
            self._left_behind = True
        if self._clock.monotonic() < self._next_check:
            return gone
        # Once an hour: what is old but not checked yet, and what pruned runs have left behind.
        if self._left_behind:
            self._left_behind = False
            await sweep(self._store, await self._store.now())
        if await self._waiting(before):
            self._next_check = self._clock.monotonic() + CHECK_EVERY_US
            if not await self._check(before):
                self._checked = 0
                log.warning(
                    "nothing is pruned: the history breaks a promise."
                    " Run: locktender audit. Then: locktender db prune --force"
                )
                return gone
            self._checked = None
            gone += await self._prune(before)
            self._left_behind = bool(gone)
        return gone

    async def _prune(self, before: int) -> int:
        if self._checked is None:
            last = (await marks(self._store)).last
            fine = last is not None and (not last.violations or last.forced)
            self._checked = last.seq if last is not None and fine else 0
        if not self._checked:
            return 0
        gone, began = 0, self._clock.monotonic()
        while True:
            start = self._clock.monotonic()
            runs = self._slices.runs
            prune = Prune(before, self._checked, self._who, self._after, batch=runs)
            done = await self._store.prune(prune)
            gone += done.runs
            self._after = done.after
            if not self._after:
                break
            now = self._clock.monotonic()
            pause_us = self._slices.pause_us(now - start, behind=now - began > PRUNE_EVERY_US)
            await asyncio.sleep(pause_us / SECOND)
        if gone:
            log.info("pruned %s runs", gone)
        return gone

    async def _waiting(self, before: int) -> bool:
        """Whether anything is old enough. Looks at a few slices: the rest comes with its time."""
        after = 0
        for _ in range(MAX_SLICES_LOOKED_AT):
            done = await self._store.prune(
                Prune(before, UNCHECKED, self._who, after, batch=100, dry_run=True)
            )
            if done.runs:
                return True
            after = done.after
            if not after:
                break
        rows = await self._store.events(EventFilter(run=NO_RUN, limit=OLD_ROWS_WORTH_A_CHECK))
        return len(rows) == OLD_ROWS_WORTH_A_CHECK and rows[-1].at < before


class _InAChild:
    """The checker in a process of its own: it takes time, and the leader has work to do."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def check(self, before: int) -> bool:
        starting = asyncio.ensure_future(self._start(before))
        try:
            child = await asyncio.shield(starting)
            async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
                _, said = await child.communicate()
        except TimeoutError as error:
            raise LocktenderError("checking the history timed out.") from error
        finally:
            # Also a child that is just being started when this is cancelled: it would be left behind.
            await to_its_end(_end(starting))
        if child.returncode == 0:
            return True
        if _code(said) == "history_broken":
            return False
        raise LocktenderError(f"checking the history failed: {said.decode()[-500:].strip()}")

    def _start(self, before: int) -> Coroutine[Any, Any, Process]:
        return asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "locktender.cli.main", "db", "checkpoint", "--json"),
            *("--before", str(before)),
            # Not as an argument: a url may hold a password, and arguments are seen by all.
            env={**os.environ, "LOCKTENDER_URL": self._url},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )


async def _end(starting: Awaitable[Process]) -> None:
    child = await starting
    if child.returncode is None:
        child.kill()
        await child.wait()


def _code(said: bytes) -> str:
    try:
        return msgspec.json.decode(said, type=dict[str, object]).get("code") or ""  # pyright: ignore[reportReturnType]
    except msgspec.DecodeError:
        return ""
