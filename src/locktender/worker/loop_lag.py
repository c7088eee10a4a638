"""Measures how late a loop is, and names the step that holds it.

A thread asks the loop for an answer a few times per threshold; where none comes in time it reads
the stack of the loop's thread. Only a step that is seen again and again is named: a loop with too
much to do is late as well. Steps pay nothing for it: the loop calls a handle, and the handle has
the context of the step.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import threading
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, Protocol

from locktender.base.clock import MILLISECOND, SECOND, Clock

log: logging.Logger = logging.getLogger(__name__)
SAY_AGAIN_US: Final = 60 * SECOND
MAX_REMEMBERED: Final = 1_000
WINDOW_US: Final = 5 * SECOND
_OURS = str(Path(__file__).parents[1])
_LIBRARIES: Final = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


OnBlock = Callable[[str, int], None]


class LoopHolder(Protocol):
    @property
    def token(self) -> int: ...
    @property
    def step(self) -> NamedStep: ...


class NamedStep(Protocol):
    @property
    def name(self) -> str: ...


class LoopSample(NamedTuple):
    """Who had the loop at one moment, and where its code was."""

    who: object
    """The attempt's token; for code outside of steps, the handle that the loop runs."""
    step: str | None
    place: str
    is_users: bool
    """Whether that line is of a user's own code."""


class LoopLag:
    """`holder` says, from any thread, whose body has the loop; `on_block` hears, on the loop, of every
    step that held it, once it has let go: (step, how late the loop was). Code outside of steps is only logged."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        holder: Callable[[], LoopHolder | None],
        clock: Clock,
        threshold_us: int,
        on_block: OnBlock | None = None,
    ) -> None:
        self._loop = loop
        self._loop_thread = thread
        self._holder = holder
        self._clock = clock
        self._threshold_us = threshold_us
        self._on_block = on_block
        self._thread = threading.Thread(
            target=self._watch, name="locktender-loop-watch", daemon=True
        )
        self._stop = threading.Event()
        self._answered = threading.Event()
        self._answered_at = 0
        self._asked_at = 0
        self._worst = 0
        self._worst_before = 0
        self._window_since = 0
        self._said: dict[str, int] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns at once: the thread ends by itself, and may be called from the loop."""
        self._stop.set()
        self._answered.set()

    def worst_us(self) -> int:
        """How late the loop was at worst in the last five to ten seconds, also if it still is."""
        return max(self._worst, self._worst_before, self.late_us())

    def late_us(self) -> int:
        """How late the loop is at this moment."""
        asked = self._asked_at
        return self._clock.monotonic() - asked if asked and not self._answered.is_set() else 0

    # -- in the thread -----------------------------------------------------------------------------

    def _watch(self) -> None:
        half = self._threshold_us / 2 / SECOND
        while not self._stop.wait(half):
            self._answered.clear()
            if self._stop.is_set():  # it came between the two lines: its answer is cleared too
                return
            self._asked_at = self._clock.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return  # the loop is closed
            try:
                if not self._answered.wait(half):
                    self._late(half)
            except Exception:
                log.exception("failed to find what holds the worker's loop: internal error")
                self._answered.wait()
            if not self._stop.is_set():
                self._note(self._answered_at - self._asked_at)

    def _note(self, lag_us: int) -> None:
        now = self._clock.monotonic()
        if now - self._window_since >= WINDOW_US:
            self._worst_before, self._worst, self._window_since = self._worst, 0, now
        self._worst = max(self._worst, lag_us)

    def _answer(self) -> None:
        self._answered_at = self._clock.monotonic()
        self._answered.set()

    def _late(self, half: float) -> None:
        """No answer after half the threshold: look until it is the same one twice running, a later one
        three times, then wait for the end of it."""
        before, times, enough = self._sample(), 1, 2
        while not self._answered.wait(half):
            sight = self._sample()
            if before is None or sight is None or before.who != sight.who:
                # Who comes later has not been late for as long: looked at once more.
                before, times, enough = sight, 1, 3
                continue
            times += 1
            if times >= enough:
                self._log(sight)
                step = sight.step
                del before, sight  # a handle that has run must not be kept alive
                self._answered.wait()
                self._report(step)
                return

    def _report(self, step: str | None) -> None:
        if step is not None and self._on_block is not None and not self._stop.is_set():
            self._on_block(step, self._answered_at - self._asked_at)

    def _sample(self) -> LoopSample | None:
        holder = self._holder()
        frame = frame_of(self._loop_thread.ident or 0)
        if holder is not None:
            return LoopSample(holder.token, holder.step.name, *_place(frame))
        handle = running_handle(frame)
        return None if handle is None else LoopSample(handle, None, *_place(frame))

    def _log(self, sight: LoopSample) -> None:
        now = self._clock.monotonic()
        subject = sight.step or sight.place
        if now - self._said.get(subject, -SAY_AGAIN_US) < SAY_AGAIN_US:
            return
        if len(self._said) >= MAX_REMEMBERED:
            self._said.clear()
        self._said[subject] = now
        threshold_ms = self._threshold_us // MILLISECOND
        if not sight.is_users and sight.step is None:
            # Our own code, or an import of ours, is nothing that its user can change.
            log.info(
                "the worker holds its own loop for more than %d ms, at %s",
                threshold_ms,
                sight.place,
            )
            return
        if sight.step is None:
            log.warning(
                "code outside any step blocks the worker's event loop for more than %d ms, at %s: nothing"
                " else of this worker goes on meanwhile. Await what blocks, or give it a thread.",
                threshold_ms,
                sight.place,
            )
            return
        log.warning(
            "step %s holds the worker's loop for more than %d ms, at %s: no other async step goes on"
            " meanwhile. Await what blocks, or make it a step without async (a thread).",
            sight.step,
            threshold_ms,
            sight.place,
        )


def frame_of(thread: int) -> FrameType | None:
    """Where a thread's code is at this moment."""
    return sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]


def running_handle(frame: FrameType | None, *, outer: bool = True) -> asyncio.Handle | None:
    """What the loop has called, seen from within; None: the loop itself waits. `outer`: look further up."""
    while frame is not None:
        if frame.f_code.co_name == "_run":
            handle = frame.f_locals.get("self")
            if isinstance(handle, asyncio.Handle):
                return handle
        frame = frame.f_back if outer else None
    return None


def context_of(handle: asyncio.Handle) -> Context:
    """The context it runs in: that of the task it is a step of, or of the code that scheduled it."""
    if sys.version_info >= (3, 12):
        return handle.get_context()
    return handle._context  # pyright: ignore — 3.11 has no public name for it


def _place(frame: FrameType | None) -> tuple[str, bool]:
    """The innermost line of the user's own code; where there is none, the innermost of all, and False."""
    innermost = ""
    while frame is not None and running_handle(frame, outer=False) is None:  # beyond it is the loop
        file = frame.f_code.co_filename
        place = f"{file}:{frame.f_lineno} ({frame.f_code.co_qualname})"
        if not file.startswith((_OURS, *_LIBRARIES, "<frozen")):
            return place, True
        innermost = innermost or place
        frame = frame.f_back
    return innermost or "an unknown line", False
