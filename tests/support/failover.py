"""What tests of killed and paused processes share: steps, short leases, a load, and what must hold after it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from locktender import Client, Run
from locktender.base.errors import StoreError, WaitTimeout
from locktender.base.states import TERMINAL_RUNS
from locktender.testing import load_history
from locktender.testing.fixtures import eventually
from locktender.testing.overlap import Overlap
from locktender.testing.postgres_server import connected, run
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

T = TypeVar("T")
STEPS_FILE = Path(__file__).parents[1] / "steps" / "engine_steps.py"
steps: Any = load(source(STEPS_FILE))

QUICK: dict[str, str] = {
    "worker_lease": "2s",
    "heartbeat": "400ms",
    "leader_lease": "1500ms",
    "leader_renew": "300ms",
}
"""Leases that end while a test looks on."""
POOLS = {"db": 3, "api": 4}
ITEMS = 6
RIGHT = sum(range(1, ITEMS + 1))
"""What `light` over `ITEMS` comes to."""
MAX_OPEN = 4
"""Runs of the load at once: what is measured is the recovery, not the queue."""
PATIENCE_SECONDS = 90.0
"""What takes longer than this does not come; how long it took is reported, not judged."""


def patiently(ask: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """The answer of a client, asked again where the store cannot be reached: it may be dead just now."""
    end = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except StoreError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def result(run: Run[T], seconds: float = PATIENCE_SECONDS) -> T:
    """The run's result. A run that does not end says what it waits for."""
    try:
        return run.result(seconds)
    except WaitTimeout as error:
        tasks = [(task.name, str(task.state), task.worker) for task in run.tasks()]
        raise AssertionError(f"{error} {run.why()} {Counter(tasks)}") from error


class Watch:
    """Seconds since something died."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def until(self, condition: Callable[[], object], most: float = PATIENCE_SECONDS) -> float:
        """How long it took to come true; more than `most` is an error."""
        left = most - (time.monotonic() - self._began)
        eventually(condition, f"{max(1, round(left * 1000))}ms", "the recovery")
        return time.monotonic() - self._began


class Load:
    """Runs of `light`, submitted one after another by a thread until told otherwise, a few at a time.

    Each has a key: a submission whose answer was lost is repeated and finds the run it made.
    """

    def __init__(self, client: Client, every: float = 0.05) -> None:
        self.runs: list[Run[int]] = []
        """Those that were acknowledged."""
        self.open: list[Run[int]] = []
        """Those that had not ended when they were last looked at."""
        self._client = client
        self._every = every
        self._stop = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._submit, daemon=True)
        for pool, limit in POOLS.items():
            client.pools.set(pool, limit=limit)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _submit(self) -> None:
        try:
            while not self._stop.wait(self._every):
                self.open = [each for each in self.open if unfinished([each])]
                if len(self.open) >= MAX_OPEN:
                    continue
                key = f"load-{len(self.runs)}"
                self.runs.append(
                    patiently(
                        lambda key=key: self._client.submit(
                            steps.light, list(range(ITEMS)), key=key, on_duplicate="attach"
                        )
                    )
                )
                self.open.append(self.runs[-1])
        except BaseException as error:  # noqa: BLE001 — raised where it is looked for
            self._failed = error

    def check(self, overlap: Overlap, at_least: int = 1, *, limits: bool = True) -> None:
        """Every acknowledged run ends right, and the bodies kept to the limits."""
        self.__exit__()
        if self._failed is not None:
            raise self._failed
        assert len(self.runs) >= at_least
        assert {result(run) for run in self.runs} == {RIGHT}
        for pool, limit in POOLS.items() if limits else ():
            assert overlap.peak(pool) <= limit, pool


def works(client: Client, seconds: float = PATIENCE_SECONDS) -> None:
    """A run submitted now is carried out: somebody leads, somebody works."""
    run = patiently(lambda: client.submit(steps.many, [1, 2], 0.001, priority=9))
    assert result(run, seconds) == [2, 4]


def recorded_once(url: str) -> None:
    """No outcome is in the history twice: of no run, and of no task."""
    ends: Counter[tuple[str, int, int]] = Counter()
    events = load_history(url).events
    for event in events:
        if event.subject == "task" and event.after == "completed":
            ends["task", event.run, event.task] += 1
        elif event.subject == "run" and event.after in TERMINAL_RUNS:
            ends["run", event.run, 0] += 1
    for (_, _, task), times in ends.items():
        told = [str(event) for event in events if event.task == task or event.subject == "leader"]
        assert times == 1, "\n".join(told)


def led(url: str) -> list[str]:
    """Who has led, one owner per term."""
    events = load_history(url).events
    return [event.after for event in events if event.subject == "leader"]


def query(url: str, text: str, *args: object) -> list[Any]:
    """Asked behind the store's back, on a connection that is not one of locktender's."""

    async def ask() -> list[Any]:
        async with connected(url) as conn:
            return await conn.fetch(text, *args)

    return run(ask())


END_BACKENDS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'locktender'"
)


def unfinished(runs: Iterable[Run[Any]]) -> int:
    return sum(patiently(each.status) not in TERMINAL_RUNS for each in runs)
