"""What the pytest fixtures are made of; usable without pytest.

Engines     isolated engines on a file, closed and judged at the end
Clock       the store's time, which moves only by `advance`
MaxConcurrent   asserts a peak from the history and from the bodies' own records
eventually  a bounded wait for something another thread or process does
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from locktender.base.clock import ManualClock, SystemClock
from locktender.base.config import Settings
from locktender.base.durations import Duration
from locktender.base.durations import microseconds as to_microseconds
from locktender.base.errors import InvalidInput, NotFound
from locktender.base.names import UNLIMITED, did_you_mean
from locktender.client import core as client_core
from locktender.client.client import Client
from locktender.client.open import connect, embedded
from locktender.observe.checker import peaks
from locktender.store.open import store_for
from locktender.store.protocol import Store
from locktender.store.sqlite.store import SqliteStore
from locktender.testing.history import check_history, load_history
from locktender.testing.overlap import Overlap
from locktender.testing.processes import EngineProcess

T = TypeVar("T")
LOOK_SECONDS = 0.002
MAX_LOOK_SECONDS = 0.025
"""Pause between two checks: what is waited for needs the machine, too."""
LONG_LEASE = "3650d"
"""Under a clock that jumps, leases must not be what ends: a test that wants that sets its own."""


def eventually(condition: Callable[[], T], timeout: Duration = "60s", what: str = "it") -> T:
    """The first true answer of `condition`. Raises `AssertionError` where none comes in time."""
    end = time.monotonic() + to_microseconds(timeout, "timeout") / 1_000_000
    pause = LOOK_SECONDS
    while not (answer := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"timed out after {timeout} waiting for {what}")
        time.sleep(pause)
        pause = min(pause * 1.25, MAX_LOOK_SECONDS)
    return answer


class VirtualClock(ManualClock):
    """The store's time, which moves only by `move` and `advance`.

    By it go deadlines of runs, queue timeouts, back-off, rates and leases. A
    step's own timeout and what bodies sleep is real time.
    """

    def __init__(self) -> None:
        super().__init__(SystemClock().now())
        self._clients: list[Client] = []

    def move(self, duration: Duration) -> None:
        """Moves the time on, by "2h", seconds or a timedelta, and lets the engines see what is due."""
        super().advance(to_microseconds(duration))
        for client in self._clients:
            run_cycle_soon(client)

    def advance(self, microseconds: int | str | timedelta) -> None:
        """Moves the time on by a number of microseconds, or as `move` by "2h" or a timedelta."""
        if isinstance(microseconds, str | timedelta):
            self.move(microseconds)
            return
        if not isinstance(microseconds, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                "advance takes whole microseconds.",
                field="microseconds",
                got=microseconds,
                hint='For seconds use move(1.5), or advance("1.5s").',
            )
        super().advance(microseconds)

    def add(self, client: Client) -> None:
        """Makes the engine of `client` see every move of the clock."""
        self._clients.append(client)


def run_cycle_soon(client: Client) -> None:
    """Wakes a client's engine at once, as after a commit of its own."""
    if not client.closed:
        core = client._core  # pyright: ignore[reportPrivateUsage]
        client._bridge.run_soon(core.changed)  # pyright: ignore[reportPrivateUsage]


class Engines:
    """Engines and clients on one fresh file. `close` ends them and judges the file's history."""

    def __init__(self, folder: Path, overlap: Overlap, settings: dict[str, Any]) -> None:
        self.path: Path = folder / "locktender.db"
        self._overlap = overlap
        self._settings = settings
        self._clients: list[Client] = []
        self._processes: list[EngineProcess] = []
        self._clock: VirtualClock | None = None

    def __call__(self, **settings: Any) -> Client:
        """A new engine in this process, with these settings over the fixture's."""
        # A project's own setting is for its servers: a test starts no processes unless it says so.
        given: dict[str, Any] = {"max_workers": 0, **self._settings, **settings}
        if self._clock is not None:
            given = {"worker_lease": LONG_LEASE, "leader_lease": LONG_LEASE, **given}
        return self._add(embedded(self.path, **given))

    def connect(self) -> Client:
        """A client without an engine."""
        return self._add(connect(self.path))

    def process(self, *files: Path, **settings: Any) -> EngineProcess:
        """An engine in a process of its own, which imports these files of steps. Call `ready()` on it."""
        given = {**self._settings, **settings}
        process = EngineProcess(self.path, *files, overlap=self._overlap, **given)
        self._processes.append(process)
        return process

    @contextmanager
    def virtual(self) -> Generator[VirtualClock]:
        """From here on the file's time is a clock that the test moves."""
        clock = self._clock = VirtualClock()

        def store(settings: Settings) -> Store:
            ours = Path(settings.url).absolute() == self.path.absolute()
            return SqliteStore(settings.url, clock) if ours else store_for(settings)

        with mock.patch.object(client_core, "store_for", store):
            try:
                yield clock
            finally:
                # While the patch is on: a slot worker opens its store late.
                self.end()

    def _add(self, client: Client) -> Client:
        self._clients.append(client)
        if self._clock is not None:
            self._clock.add(client)
        return client

    def end(self) -> None:
        """Ends every engine: processes are killed, what runs here is handed back."""
        for process in self._processes:
            process.kill()
        for client in reversed(self._clients):
            client.close(0)

    def close(self) -> None:
        """Ends every engine and judges the history they leave."""
        self.end()
        if self.path.exists():
            check_history(self.path)


class MaxConcurrent:
    """`assert_max_concurrent("db", 3)`: no more than 3 slots were ever in use, nor did more bodies run."""

    def __init__(self, engines: Engines, overlap: Overlap) -> None:
        self._engines = engines
        self._overlap = overlap

    def __call__(self, name: str, limit: int, *, exactly: bool = False) -> int:
        """Asserts the peak of a pool, of a limit by its full name, or of recorded bodies; returns it.

        Names are those of pools (`db`), of limits as `locktender.observe.checker.peaks`
        has them (`runs`, `tag:tenant=*acme`, `window:flow/step`), and those the bodies were
        recorded under. Both are compared where both know the name.
        `exactly`: the limit was reached, too.
        """
        known = {peak.name: peak for peak in peaks(load_history(self._engines.path))}
        found: dict[str, int] = {}
        limited = known.get(f"pool:{name}") or known.get(name)
        if limited is not None:
            found["the history"] = limited.peak
        if name in self._overlap.names():
            found["the bodies"] = self._overlap.peak(name)
        if not found:
            names = {*(each.removeprefix("pool:") for each in known), *self._overlap.names()}
            raise NotFound(
                f"no limit and no recorded body is named {name!r}.",
                field="name",
                got=name,
                hint=did_you_mean(name, names) or "Set a limit for it, or record the bodies.",
            )
        for source, peak in found.items():
            if limit != UNLIMITED and peak > limit:
                raise AssertionError(f"{name}: {source} had {peak} at once; the limit is {limit}.")
        peak = max(found.values())
        if exactly and peak != limit:
            raise AssertionError(f"{name}: only {peak} at once; {limit} were to be reached.")
        return peak
