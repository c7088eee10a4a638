"""Ctrl-C and SIGTERM as something that can be asked about, so that they never strike in the middle of a write."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupts:
    """Counts interrupts while it is entered; who waits on it wakes up."""

    def __init__(self) -> None:
        self.count: int = 0
        self.signal: signal.Signals = signal.SIGINT
        self._wake = threading.Event()
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        return 128 + self.signal

    def wake(self) -> None:
        """From any thread: whoever waits should look."""
        self._wake.set()

    def wait(self, seconds: float) -> None:
        """Until something happens, or `seconds` have passed."""
        self._wake.wait(seconds)
        self._wake.clear()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._strike)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _strike(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.signal = signal.Signals(number)
        self._wake.set()
