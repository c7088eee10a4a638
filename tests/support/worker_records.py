"""How long worker processes lived, from their own records and from what the machine says of them.

Nothing here asks the engine: a worker counts from when the machine began its
process (before Python has read a line) until the process is gone, whether it
joined, got a task or ended well. Who writes the records: `tests/steps/bounded_steps.py`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from locktender.base.clock import SystemClock
from locktender.testing.overlap import alive

LOOK_SECONDS = 0.01
_clock = SystemClock()


@dataclass(slots=True)
class Life:
    """One process that imported the steps."""

    pid: int
    provision: str
    """What its provisioner calls it; empty where somebody started it by hand."""
    began_us: int
    ended_us: int | None = None

    @property
    def seconds(self) -> float:
        """From its beginning to its end; of one that lives, up to now."""
        return ((self.ended_us or _clock.monotonic()) - self.began_us) / 1_000_000


class WorkerRecords:
    """A thread looks every few milliseconds who is there: who has ended cannot be asked any more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[Life] = []
        self._over = threading.Event()

    @property
    def spawned(self) -> list[Life]:
        """Workers that a provisioner started, all that ever were."""
        return [life for life in self._found.copy() if life.provision]

    def left(self) -> list[str]:
        """Processes that are there and have the records' file in their environment, whatever they are."""
        mark = str(self._path)
        found: list[str] = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and mark in process.environ().values():
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
            except psutil.Error:  # it has ended meanwhile, is a zombie, or is not ours
                continue
        return found

    @contextmanager
    def watched(self) -> Iterator[WorkerRecords]:
        watch = threading.Thread(target=self._watch, name="worker-records", daemon=True)
        watch.start()
        try:
            yield self
        finally:
            self._over.set()
            watch.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self._read()
            for life in self._found:
                if life.ended_us is None and not alive(life.pid):
                    life.ended_us = _clock.monotonic()

    def _read(self) -> None:
        if not self._path.exists():
            return
        whole = self._path.read_bytes().rpartition(b"\n")[0]
        for line in whole.splitlines()[len(self._found) :]:
            pid, provision, began_us = json.loads(line)
            self._found.append(Life(pid, provision, began_us))


def peak(found: list[Life]) -> int:
    """Most processes at once; it grows only where one begins."""
    return max(
        sum(
            other.began_us <= life.began_us < (other.ended_us or life.began_us + 1)
            for other in found
        )
        for life in found
    )
