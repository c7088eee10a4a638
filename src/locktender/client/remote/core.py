"""What the verbs over HTTP share: the server, settings, who waits for which run. It lives on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, cast

from locktender.base.background import end_tasks
from locktender.base.clock import SECOND
from locktender.base.config import Settings
from locktender.base.errors import AccessRefused, LocktenderError, StoreError
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.client.client_async import ServerAccess
from locktender.client.core import Core
from locktender.client.guard import ClientGuard, closed
from locktender.client.refusals import goes_on
from locktender.client.remote.http import LONGEST_WAIT, HttpServer, path_of
from locktender.client.run_waiter import STORE_AWAY_SECONDS
from locktender.client.views import EndedRun, RunInfo
from locktender.store.open import needs_database
from locktender.store.protocol import Store

SUBMITTED_POLL_SECONDS = 0.1
MAX_WAITED_FOR = 500
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
def _unless_forbidden() -> Generator[None]:
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
                await http.get("/whoami", dict[str, Any])
        except BaseException:
            await http.close()
            raise
        return cls(settings, http, own)

    async def _close(self, grace_us: int | None) -> None:  # noqa: ARG002 — nothing runs here
        try:
            await self.ends.close()
        finally:
            await self.http.close()


class WaitDeadline(NamedTuple):
    """How long a caller waits, and when that is over."""

    timeout_us: int | None
    at: int | None


class EndsWaiter:
    """Waits for runs to end: one request for all that are waited for, which the server holds until one has."""

    def __init__(self, http: HttpServer, guard: ClientGuard) -> None:
        self._http = http
        self._guard = guard
        self._clock = http.clock
        self._waiters: dict[int, list[asyncio.Future[str]]] = {}
        self._asked: set[int] = set()
        self._request: asyncio.Task[list[EndedRun]] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def until(self, timeout_us: int | None) -> WaitDeadline:
        at = None if timeout_us is None else self._clock.monotonic() + timeout_us
        return WaitDeadline(timeout_us, at)

    async def ended(self, run_id: str, number: int, state: str, until: WaitDeadline) -> RunState:
        """How the run ended, which was in `state`. Raises `WaitTimeout` when that time is over first."""
        try:
            async with asyncio.timeout(self._left(until)):
                while (
                    not number
                ):  # only submitted: nobody is told when the leader makes a run of it
                    await asyncio.sleep(SUBMITTED_POLL_SECONDS)
                    info = await self._info(run_id)
                    number, state = info.number, info.state
                    if state in TERMINAL_RUNS:
                        return RunState(state)
                ended = await self._end_of(number)
        except TimeoutError:
            ended = (await self._info(run_id)).state
            if ended not in TERMINAL_RUNS:
                raise goes_on(run_id, ended, until.timeout_us) from None
        # Of one that is gone the next question says so.
        return RunState(ended) if ended else (await self._info(run_id)).state

    async def close(self) -> None:
        """Tells every waiter that the client is closed."""
        self._fail(closed())
        await end_tasks([each for each in (self._watcher, self._request) if each is not None])

    def _left(self, until: WaitDeadline) -> float | None:
        return None if until.at is None else max(0, until.at - self._clock.monotonic()) / SECOND

    async def _info(self, run_id: str) -> RunInfo:
        return await self._http.get(path_of("runs", run_id), RunInfo)

    async def _end_of(self, number: int) -> str:
        self._guard.check()
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(number, []).append(future)
        self._watch(number)
        try:
            return await future
        finally:
            several = self._waiters.get(number, [])
            if future in several:
                several.remove(future)
            if not several:
                self._waiters.pop(number, None)

    def _watch(self, number: int) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._follow(), name="locktender-waiting")
        elif number not in self._asked and self._request is not None:
            # The request that is under way does not name this run: it is asked again with it.
            self._request.cancel()

    async def _follow(self) -> None:
        heard = self._clock.monotonic()
        while self._waiters:
            await asyncio.sleep(GATHER_SECONDS)
            runs = list(self._waiters)
            for part in batched(runs, MAX_WAITED_FOR):
                # Beyond one request's worth, each part is waited for in its turn.
                wait = LONGEST_WAIT if len(runs) <= MAX_WAITED_FOR else 1
                self._asked = set(runs)
                self._request = asyncio.create_task(self._ask(part, wait))
                try:
                    self._resolve(await self._request)
                    heard = self._clock.monotonic()
                except asyncio.CancelledError:
                    current = asyncio.current_task()
                    if current is not None and current.cancelling():
                        raise
                except LocktenderError as error:
                    away = self._clock.monotonic() - heard
                    if not isinstance(error, StoreError) or away > STORE_AWAY_SECONDS * SECOND:
                        self._fail(error)
                    await asyncio.sleep(RETRY_SECONDS)
        self._request = None

    async def _ask(self, runs: list[int], wait: int) -> list[EndedRun]:
        query = {"numbers": ",".join(map(str, runs)), "wait": wait}
        return await self._http.get("/runs/ended", list[EndedRun], "ended", query=query)

    def _resolve(self, ended: list[EndedRun]) -> None:
        for run in ended:
            for future in self._waiters.pop(run.number, ()):
                if not future.done():
                    future.set_result(run.state)

    def _fail(self, error: LocktenderError) -> None:
        several = [future for waiters in self._waiters.values() for future in waiters]
        self._waiters.clear()
        for future in several:
            if not future.done():
                future.set_exception(error)


def batched(items: list[int], size: int) -> list[list[int]]:
    return [items[at : at + size] for at in range(0, len(items), size)]
