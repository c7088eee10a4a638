"""Attempts that were told to stop and have not: named in the log, and carried by the worker's beat.

A thread cannot be stopped, and an async body may swallow its cancellation. Such
an attempt stays *running*, with its permit and its slots, until it ends by
itself. Whoever waits for those must be able to see it.

Looked for on the worker's loop; `notes` is replaced as a whole, so that the
thread of the lease may read it at any moment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from locktender.base.clock import SECOND
from locktender.base.durations import spoken
from locktender.base.model import Stubborn
from locktender.stages.executors.protocol import Stopping

log: logging.Logger = logging.getLogger(__name__)
PATIENCE_US: int = SECOND
"""What ends within it ended as it was told."""
MOST = 100
"""How many a beat carries: of more, those that were told first."""
MOST_LINES = 10
"""How many are named in the log at a time."""
_ADVICE = {
    "async": "let CancelledError through, or take blocking calls to a thread",
    "thread": 'a thread cannot be stopped: look at current().stop_requested, or use executor="process"',
}


class StubbornBoard:
    def __init__(self) -> None:
        self.notes: list[Stubborn] = []
        """What the next beat carries."""
        self._ahead_us = 0
        self._named: set[int] = set()

    def joined(self, at: int, now: int) -> None:
        """It was `at` by the store when it was `now` by the process's own clock."""
        self._ahead_us = at - now

    def look(self, now: int, stopping: Iterable[tuple[str, Stopping]]) -> bool:
        """`stopping`: each with its kind of executor. Whether there are some that nobody has heard of yet."""
        late = [(kind, each) for kind, each in stopping if now - each.since_us >= PATIENCE_US]
        if not late and not self.notes:
            return False
        late.sort(key=lambda of: of[1].since_us)
        self.notes = [
            Stubborn(each.token, each.task, each.step, each.reason, each.since_us + self._ahead_us)
            for _, each in late[:MOST]
        ]
        new = [(kind, each) for kind, each in late if each.token not in self._named]
        self._named = {each.token for _, each in late}
        for kind, each in new[:MOST_LINES]:
            log.warning(
                "task %s (step %s) was told to stop %s ago (%s) and still runs, with its permit and its slots; %s",
                each.task,
                each.step,
                spoken(now - each.since_us),
                each.reason,
                _ADVICE.get(kind, "its process is being ended"),
            )
        if len(new) > MOST_LINES:
            log.warning("%s more were told to stop and still run", len(new) - MOST_LINES)
        return bool(new)
