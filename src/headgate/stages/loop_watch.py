"""How late the worker's loop is, and which step makes it so.

Who runs this: a thread beside the loop, because a loop that is held cannot
measure itself. It asks the loop for an answer a few times per threshold; where
none comes in time it looks, twice, who holds the loop and at which line. Only a
step that is found both times is blamed: a loop with too much to do is late as
well, and then whoever is seen last is not at fault. Tasks pay nothing for it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, Protocol

from headgate.base.clock import MILLISECOND, SECOND, Clock

log: logging.Logger = logging.getLogger(__name__)
SAY_AGAIN_US: Final = 60 * SECOND
MOST_REMEMBERED: Final = 1_000
WINDOW_US: Final = 5 * SECOND
_OURS = str(Path(__file__).parents[1])
_LIBRARIES: Final = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class Held(Protocol):
    @property
    def token(self) -> int: ...
    @property
    def step(self) -> Named: ...


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Sight(NamedTuple):
    """Who had the loop at one moment, and where its code was."""

    token: int
    step: str
    place: str


class LoopWatch:
    """`holder` says, from any thread, whose body has the loop; `on_block` hears, on the loop, of every
    step that held it, once it has let go: (step, how late the loop was)."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        holder: Callable[[], Held | None],
        clock: Clock,
        threshold_us: int,
        on_block: Callable[[str, int], None] | None = None,
    ) -> None:
        self._loop = loop
        self._holder = holder
        self._clock = clock
        self._threshold_us = threshold_us
        self._on_block = on_block
        self._thread = threading.Thread(target=self._watch, name="headgate-loop-watch", daemon=True)
        self._stop = threading.Event()
        self._answered = threading.Event()
        self._answered_at = 0
        self._asked_at = 0
        self._loop_thread = 0
        self._worst = 0
        self._worst_before = 0
        self._window_since = 0
        self._said: dict[str, int] = {}

    def start(self) -> None:
        """On the loop's own thread: whose stack is read from then on."""
        self._loop_thread = threading.get_ident()
        self._thread.start()

    def stop(self) -> None:
        """Returns at once: the thread ends by itself, and may be called from the loop."""
        self._stop.set()
        self._answered.set()

    def worst_us(self) -> int:
        """How late the loop was at worst in the last five to ten seconds, also if it still is."""
        worst = max(self._worst, self._worst_before)
        asked = self._asked_at
        late = self._clock.monotonic() - asked if asked and not self._answered.is_set() else 0
        return max(worst, late)

    # -- in the thread -----------------------------------------------------------------------------

    def _watch(self) -> None:
        half = self._threshold_us / 2 / SECOND
        while not self._stop.wait(half):
            self._answered.clear()
            self._asked_at = self._clock.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return  # the loop is closed
            if not self._answered.wait(half):
                self._late(half)
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
        """No answer after half the threshold: see who it is, twice, and wait for the end of it."""
        first = self._see()
        if self._answered.wait(half):
            return
        second = self._see()
        held = second is not None and first is not None and first.token == second.token
        if second is not None and held:
            self._say(second)
        self._answered.wait()
        if second is not None and held and self._on_block is not None and not self._stop.is_set():
            with suppress(RuntimeError):  # the loop was closed meanwhile
                lag_us = self._answered_at - self._asked_at
                self._loop.call_soon_threadsafe(self._on_block, second.step, lag_us)

    def _see(self) -> Sight | None:
        holder = self._holder()
        if holder is None:
            return None
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        return Sight(holder.token, holder.step.name, _place(frame))

    def _say(self, sight: Sight) -> None:
        now = self._clock.monotonic()
        if now - self._said.get(sight.step, -SAY_AGAIN_US) < SAY_AGAIN_US:
            return
        if len(self._said) >= MOST_REMEMBERED:
            self._said.clear()
        self._said[sight.step] = now
        log.warning(
            "step %s holds the worker's loop for more than %d ms, at %s: nothing else of this worker"
            " goes on meanwhile. Await what blocks, or make it a step without async (a thread).",
            sight.step,
            self._threshold_us // MILLISECOND,
            sight.place,
        )


def _place(frame: FrameType | None) -> str:
    """The innermost line of the user's own code; where all of it is a library's, the innermost of that."""
    library = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, "<frozen")):
            place = f"{file}:{frame.f_lineno} ({frame.f_code.co_qualname})"
            if not file.startswith(_LIBRARIES):
                return place
            library = library or place
        frame = frame.f_back
    return library or "an unknown line"
