"""How often the interpreter looks for cyclic garbage while an engine runs in its process.

By default it does after every 700 objects, and every so often it walks all there
are. A worker with thousands of attempts in flight makes many objects that live for
a while and hardly any cycles: of 10,000 steps of one second the starts and ends took
1.0 s with the default and 0.7 s with these. Whoever has set thresholds of their own,
or has switched the collector off, keeps them.
"""

from __future__ import annotations

import gc
import threading

Thresholds = tuple[int, int, int]

DEFAULTS: frozenset[Thresholds] = frozenset({(700, 10, 10), (2_000, 10, 10), (2_000, 10, 0)})
"""Of the versions of Python that we run on: nobody has chosen these."""
RARER: Thresholds = (10_000, 20, 50)


class Collecting:
    """Rarer while any engine of the process runs; as before when the last one has stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # engines of one process may run on loops of several threads
        self._engines: set[object] = set()
        self._before: Thresholds | None = None

    def begin(self, engine: object) -> None:
        with self._lock:
            first = not self._engines
            self._engines.add(engine)
            if first and (found := gc.get_threshold()) in DEFAULTS:
                self._before = found
                gc.set_threshold(*RARER)

    def end(self, engine: object) -> None:
        """Also of one that has not begun, or has ended already."""
        with self._lock:
            self._engines.discard(engine)
            if not self._engines and self._before is not None:
                if gc.get_threshold() == RARER:  # else somebody has set their own meanwhile
                    gc.set_threshold(*self._before)
                self._before = None


collecting: Collecting = Collecting()
