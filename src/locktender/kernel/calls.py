"""The calls of tasks that start in the leader's own process: an item put into what all items of its map share."""

from __future__ import annotations

from locktender.kernel import render
from locktender.kernel.entries import TaskEntry
from locktender.kernel.lives import Lives
from locktender.kernel.steps import PLAIN

MOST_SHARED = 256
"""How many maps' shared arguments are kept rendered; any other is rendered again."""


class Calls:
    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._shared: dict[tuple[int, int], bytes | None] = {}

    def of(self, entry: TaskEntry) -> bytes:
        value = entry.input or render.NULL
        if entry.idx == PLAIN:
            return value
        return render.merge(entry.spec, self._common(entry), value)

    def _common(self, entry: TaskEntry) -> bytes | None:
        key = (entry.run.seq, entry.node)
        if key not in self._shared:
            if len(self._shared) > MOST_SHARED:
                self._shared.clear()
            scope = self._lives.progress[entry.run.seq].scope
            self._shared[key] = render.shared(entry.spec, scope)
        return self._shared[key]
