"""Retention: the leader deletes runs that ended long ago, a few batches a minute, beside its cycles.

The history is checked before any of it goes. That reads all of it, so it is
not done in the leader's process: a child does it (`locktender db checkpoint`),
at most once an hour, and only while something waits to be pruned. Runs that
ended since the last checkpoint wait for the next one. Where the history breaks
a promise nothing is pruned until an operator has run `locktender audit`, then
`locktender db prune --force`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable

import msgspec

from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError
from locktender.observe.checkpoint import marks
from locktender.store.protocol import Store
from locktender.store.pruning import Prune, sweep

log: logging.Logger = logging.getLogger(__name__)
PRUNE_EVERY_US = 60 * SECOND
CHECK_EVERY_US = 3_600 * SECOND
RUNS_PER_BATCH = 100
MAX_BATCHES = 20
"""Per minute."""
CHECK_TIMEOUT_SECONDS = 1_800.0
UNCHECKED = 2**62

Check = Callable[[], Awaitable[bool]]
"""Checks the history and writes a checkpoint; whether it was all kept."""


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
        self._after = 0
        self._left_behind = False

    def due(self) -> bool:
        return self._retention_us is not None and self._clock.monotonic() >= self._next

    async def work(self) -> int:
        """Prunes a few batches; how many runs went. Never raises what the store or the child runs into."""
        if self._retention_us is None:
            return 0
        self._next = self._clock.monotonic() + PRUNE_EVERY_US
        try:
            return await self._work(await self._store.now() - self._retention_us)
        except LocktenderError as error:
            log.warning("failed to prune: %s", error)
            return 0

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
            if not await self._check():
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
        gone = 0
        for _ in range(MAX_BATCHES):
            prune = Prune(before, self._checked, self._who, self._after, batch=RUNS_PER_BATCH)
            done = await self._store.prune(prune)
            gone += done.runs
            self._after = done.after
            if not self._after:
                break
        if gone:
            log.info("pruned %s runs", gone)
        return gone

    async def _waiting(self, before: int) -> bool:
        """Whether anything is old enough. Looks at a few batches: the rest comes with its time."""
        after = 0
        for _ in range(MAX_BATCHES):
            done = await self._store.prune(
                Prune(before, UNCHECKED, self._who, after, batch=RUNS_PER_BATCH, dry_run=True)
            )
            if done.runs:
                return True
            after = done.after
            if not after:
                break
        return False


class _InAChild:
    """The checker in a process of its own: it reads the whole history, and the leader has work to do."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def check(self) -> bool:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "locktender.cli.main", "db", "checkpoint", "--json"),
            # Not as an argument: a url may hold a password, and arguments are seen by all.
            env={**os.environ, "LOCKTENDER_URL": self._url},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
                _, said = await child.communicate()
        except TimeoutError as error:
            raise LocktenderError("checking the history timed out.") from error
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode == 0:
            return True
        if _code(said) == "history_broken":
            return False
        raise LocktenderError(f"checking the history failed: {said.decode()[-500:].strip()}")


def _code(said: bytes) -> str:
    try:
        return msgspec.json.decode(said, type=dict[str, object]).get("code") or ""  # pyright: ignore[reportReturnType]
    except msgspec.DecodeError:
        return ""
