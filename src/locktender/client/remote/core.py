"""What the verbs over HTTP share: the server, settings, who waits for which run. It lives on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar, cast

from locktender.base.background import end_tasks
from locktender.base.clock import SECOND
from locktender.base.config import Settings
from locktender.base.errors import AccessRefused, LocktenderError
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.client.client_async import ServerAccess
from locktender.client.core import (
    STORE_AWAY_SECONDS,
    ClientGuard,
    Core,
    goes_on,
)
from locktender.client.remote.http import LONGEST_WAIT, HttpServer, path_of
from locktender.client.views import RunInfo
from locktender.store.open import needs_database
from locktender.store.protocol import Store
from locktender.store.retry import repeated

T = TypeVar("T")
SUBMITTED_POLL_SECONDS = 0.1
MOST_WAITED_FOR = 1_000
"""Runs that one request waits for."""
GATHER_SECONDS = 0.01
"""New waiters of this time join one request."""
RETRY_SECONDS = 1.0
FORBIDDEN = 403


class NoStore:
    """Stands where a store would: a verb that asks it says that it needs a database."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __getattr__(self, name: str) -> NoReturn:
        raise needs_database("this", self._url)

    async def close(self) -> None:
        """Nothing is open."""


@contextmanager
def _unless_forbidden() -> Iterator[None]:
    """A token that may not read may submit."""
    try:
        yield
    except AccessRefused as error:
        if error.status != FORBIDDEN:
            raise


class RemoteCore(Core):
    def __init__(self, settings: Settings, http: HttpServer, guard: ClientGuard) -> None:
        super().__init__(cast("Store", NoStore(http.url)), settings, None, guard)
        self.http = http
        self.ends: EndsWaiter = EndsWaiter(http, guard)

    @classmethod
    async def connect(
        cls, settings: Settings, access: ServerAccess, guard: ClientGuard | None
    ) -> RemoteCore:
        """Asks the server once: a wrong address or token is said here, not by the first verb."""
        own = guard or ClientGuard()
        http = HttpServer(settings.url, access, own)
        try:
            with _unless_forbidden():
                await http.get("/flows", list[Any], "flows")
        except BaseException:
            await http.close()
            raise
        return cls(settings, http, own)

    async def _close(self, grace_us: int | None) -> None:  # noqa: ARG002 — nothing runs here
        try:
            await self.ends.close()
        finally:
            await self.http.close()


class EndsWaiter:
    """Waits for runs to end: one request for all that are waited for, which the server holds until one has."""

    def __init__(self, http: HttpServer, guard: ClientGuard) -> None:
        self._http = http
        self._guard = guard
        self._clock = http.clock
        self._waiters: dict[int, list[asyncio.Event]] = {}
        self._asked: set[int] = set()
        self._request: asyncio.Task[list[int]] | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def until_ended(self, run_id: str, timeout_us: int | None) -> RunInfo:
        """The run once it has ended. Raises `WaitTimeout` when `timeout_us` passes first."""
        until = None if timeout_us is None else self._clock.monotonic() + timeout_us
        info = await self._info(run_id)
        while info.state == RunState.SUBMITTED and (
            until is None or self._clock.monotonic() < until
        ):
            await asyncio.sleep(SUBMITTED_POLL_SECONDS)
            info = await self._info(run_id)
        if info.state in TERMINAL_RUNS:
            return info
        number, woken = info.number, asyncio.Event()
        self._waiters.setdefault(number, []).append(woken)
        self._watch(number)
        left = None if until is None else max(0, until - self._clock.monotonic()) / SECOND
        try:
            async with asyncio.timeout(left):
                while info.state not in TERMINAL_RUNS:
                    await woken.wait()
                    woken.clear()
                    info = await self._info(info.id)
        except TimeoutError:
            info = await self._info(info.id)
            if info.state not in TERMINAL_RUNS:
                raise goes_on(info.id, info.state, timeout_us) from None
        finally:
            several = self._waiters[number]
            several.remove(woken)
            if not several:
                del self._waiters[number]
        return info

    async def close(self) -> None:
        """Wakes every waiter: the client is closed."""
        self._wake(list(self._waiters))
        await end_tasks([each for each in (self._watcher, self._request) if each is not None])

    async def _info(self, run_id: str) -> RunInfo:
        async def read() -> RunInfo:
            return await self._http.get(path_of("runs", run_id), RunInfo)

        return await self._again(read, f"reading run {run_id}")

    async def _again(self, read: Callable[[], Awaitable[T]], what: str) -> T:
        self._guard.check()
        found = await repeated(read, what, self._clock, self._guard.check, STORE_AWAY_SECONDS)
        self._guard.check()
        return found

    def _wake(self, runs: list[int]) -> None:
        for run in runs:
            for woken in self._waiters.get(run, ()):
                woken.set()

    def _watch(self, run: int) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._follow(), name="locktender-waiting")
        elif run not in self._asked and self._request is not None:
            # The request that is under way does not name this run: it is asked again with it.
            self._request.cancel()

    async def _follow(self) -> None:
        while self._waiters:
            await asyncio.sleep(GATHER_SECONDS)
            runs = list(self._waiters)
            parts = [runs[at : at + MOST_WAITED_FOR] for at in range(0, len(runs), MOST_WAITED_FOR)]
            # Beyond one request's worth, each part is waited for in its turn.
            wait = LONGEST_WAIT if len(parts) == 1 else 1
            for part in parts:
                self._asked = set(runs)
                self._request = asyncio.create_task(self._ended(part, wait))
                try:
                    self._wake(await self._request)
                except asyncio.CancelledError:
                    current = asyncio.current_task()
                    if current is not None and current.cancelling():
                        raise
                except LocktenderError:
                    # Each reads its run by itself, and raises when the server stays away.
                    self._wake(part)
                    await asyncio.sleep(RETRY_SECONDS)
        self._request = None

    async def _ended(self, runs: list[int], wait: int) -> list[int]:
        return await self._http.call(
            "POST",
            "/runs/wait",
            list[int],
            "ended",
            query={"wait": wait},
            body={"numbers": runs},
            again=True,
        )
