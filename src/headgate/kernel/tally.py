"""The tally of one kind of work: how much of it each worker has had, and how long it takes there.

The leader's own worker begins what it is given with the commit that decides it,
and its ends are known to the next. Any other is offered a task, answers, and
writes the end: three commits and two messages. Where bodies are short the
leader's own permits so come round twice as often, and unlimited ones take
whatever there is: it would have most of the work, for being near and not for
being fast.

So while it is ahead of an equal worker by more than a third, for each permit it
has, it is given nothing more until that one has answered. A worker whose bodies
take clearly longer is not its equal, and rightly gets fewer. What a worker missed
because it was slow, or did not answer, is forgiven: nobody waits for it to catch up.
"""

from __future__ import annotations

SLACK = 8
"""Tasks that one may be ahead of another whatever the proportion: a handful is no imbalance."""
SMOOTHING = 128
"""A duration counts for one part in so many of the mean, once there are as many."""
FEW = 32
"""With fewer durations than these nobody is called slow: the first bodies of a process take longest."""
UNTOLD_US = 10_000
"""Of a difference in duration so much is nobody's fault: a loop that was busy, a commit that was awaited."""


class Tally:
    __slots__ = ("_given", "_lasted")

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        self._lasted: dict[str, tuple[int, int]] = {}
        """How many durations were told, and their mean."""

    def gave(self, worker: str) -> None:
        given = self._given
        count = given.get(worker)
        if count is None:
            # It came later than the others: it starts at the present, and not with all they had to catch up.
            count = min(given.values(), default=0)
        given[worker] = count + 1

    def lasted(self, worker: str, took_us: int) -> None:
        """An attempt ran there for so long."""
        told, mean = self._lasted.get(worker, (0, 0))
        told = min(told + 1, SMOOTHING)
        self._lasted[worker] = told, mean + (took_us - mean) // told

    def forget(self, worker: str) -> None:
        self._given.pop(worker, None)
        self._lasted.pop(worker, None)

    def ahead(self, worker: str, other: str, permits: int = 1, others_permits: int = 1) -> bool:
        """With one more, `worker` would have had over a third more than `other` for each of its permits."""
        mine = self._given.get(worker, 0) + 1 - SLACK
        theirs = self._given.get(other)
        return theirs is not None and 3 * mine * others_permits > 4 * theirs * permits

    def slower(self, worker: str, than: str) -> bool:
        """Its bodies take half as long again, and longer."""
        told, mean = self._lasted.get(worker, (0, 0))
        others_told, others_mean = self._lasted.get(than, (0, 0))
        return min(told, others_told) >= FEW and 2 * (mean - UNTOLD_US) > 3 * others_mean

    def excuse(self, worker: str, other: str, permits: int = 1, others_permits: int = 1) -> None:
        """`worker` goes on without `other`, which has nothing to catch up from here on."""
        level = 3 * (self._given.get(worker, 0) + 1) * others_permits // (4 * permits)
        self._given[other] = max(level, self._given.get(other, 0))
