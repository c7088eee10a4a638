"""The tally of one kind of work: how much of it each worker has had, and how long it takes there.

The leader's own worker begins what it is given with the commit that decides it,
and its ends are known to the next. Any other is offered a task, answers, and
writes the end: three commits and two messages. Where bodies are short the
leader's own permits so come round twice as often, and unlimited ones take
whatever there is: it would have most of the work, for being near and not for
being fast.

So while it is ahead of an equal worker by more than a third, for each permit it
has, it is given nothing more until that one has answered or, where bodies are
short, one of its bodies has ended. A worker whose bodies take clearly longer is not
its equal, and rightly gets fewer; permits that hold a long body are not counted. What
a worker missed because it was slow, busy with other work, or did not answer, is
forgiven: nobody waits for it to catch up. Nor is anything carried over: when this work
is done all begin anew, and of what has been going on for long only the last part counts.

All of it is of one kind of work. What a worker does beside that says nothing of when
it will be heard of here.
"""

from __future__ import annotations

SLACK = 1
"""So many that one may be ahead of another, whatever the proportion."""
SPAN = 1_000
"""When anybody has had so many, all counts are halved."""
SMOOTHING = 128
"""A duration counts for one part in so many of the mean, once there are as many."""
FEW = 32
"""With fewer durations than these nobody is called slow: the first bodies of a process take longest."""
SHORT_US = 150_000
"""Bodies that take as long are not waited for: there, being near is no advantage."""
A_WHILE_US = 100_000
"""How long a worker may take, beside its bodies, until it is heard of again."""
UNTOLD_US = 10_000
"""Of a difference in duration so much is nobody's fault: a loop that was busy, a commit that was awaited."""


class Tally:
    __slots__ = ("_given", "_lasted", "_offered", "_running", "in_flight")

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        self._offered: dict[str, dict[int, int]] = {}
        """Worker → task → since when it has not answered, the oldest first."""
        self._running: dict[str, dict[int, int]] = {}
        """Worker → task → since when it runs there, the newest last."""
        self.in_flight: int = 0
        """How many both have."""
        self._lasted: dict[str, tuple[int, int]] = {}
        """How many durations were told, and their mean."""

    # -- what happens ------------------------------------------------------------------------------

    def gave(self, worker: str, task: int, now: int, *, offered: bool) -> None:
        given = self._given
        count = given.get(worker)
        if count is None:
            # It came later than the others: it starts at the present, and not with all they had to catch up.
            count = min(given.values(), default=0)
        given[worker] = count + 1
        if count >= SPAN:
            self._given = {each: had // 2 for each, had in given.items()}
        hands = self._offered if offered else self._running
        hands.setdefault(worker, {})[task] = now
        self.in_flight += 1

    def answered(self, worker: str, task: int, at: int) -> None:
        """It has taken what it was offered."""
        offers = self._offered.get(worker)
        if offers is not None and offers.pop(task, None) is not None:
            self._running.setdefault(worker, {})[task] = at

    def left(self, worker: str, task: int) -> None:
        """A task that it was given is no longer in flight there; it may have been given while nobody counted."""
        for hands in (self._running, self._offered):
            held = hands.get(worker)
            if held is not None and held.pop(task, None) is not None:
                self.in_flight -= 1

    def begin_anew(self) -> None:
        """Nothing of this work is left: what comes next is compared by itself."""
        self._given = dict.fromkeys(self._given, 0)

    def clear(self) -> None:
        """There is nobody left to compare with."""
        self._given.clear()
        self._offered.clear()
        self._running.clear()
        self._lasted.clear()
        self.in_flight = 0

    def lasted(self, worker: str, took_us: int) -> None:
        """An attempt ran there for so long."""
        told, mean = self._lasted.get(worker, (0, 0))
        told = min(told + 1, SMOOTHING)
        self._lasted[worker] = told, mean + (took_us - mean) // told

    def forget(self, worker: str) -> None:
        self._given.pop(worker, None)
        self._lasted.pop(worker, None)
        for hands in (self._running, self._offered):
            self.in_flight -= len(hands.pop(worker, ()))

    # -- who waits for whom ------------------------------------------------------------------------

    def awaited_until(self, other: str, worker: str, patience_us: int) -> int | None:
        """Until when `other` may be waited for by `worker`; None: it has nothing of this work in hand."""
        offers = self._offered.get(other)
        if offers:
            return next(iter(offers.values())) + patience_us
        bodies = self._running.get(other)
        if not bodies:
            return None
        told, mean = self._lasted.get(worker, (0, 0))
        if not told or mean >= SHORT_US:
            return 0
        return next(reversed(bodies.values())) + A_WHILE_US + 2 * mean

    def stuck(self, other: str, worker: str, now: int) -> int:
        """How many of its permits hold a body that takes far longer than they do at `worker`."""
        _, mean = self._lasted.get(worker, (0, 0))
        before = now - 2 * (A_WHILE_US + 2 * mean)
        count = 0
        for since in self._running.get(other, {}).values():
            if since >= before:
                break  # those behind it began later
            count += 1
        return count

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

    def forgive(
        self, worker: str, other: str, permits: int, others_permits: int, most: int
    ) -> None:
        """Of what `other` missed no more than `most` tasks are to be caught up."""
        if other in self._given:
            level = self._level(worker, permits, others_permits) - most
            self._given[other] = max(level, self._given[other])

    def excuse(self, worker: str, other: str, permits: int = 1, others_permits: int = 1) -> None:
        """`worker` goes on without `other`, which has nothing to catch up from here on."""
        level = self._level(worker, permits, others_permits)
        self._given[other] = max(level, self._given.get(other, 0))

    def _level(self, worker: str, permits: int, others_permits: int) -> int:
        """With as many nobody of `others_permits` is behind `worker`."""
        return 3 * (self._given.get(worker, 0) + 1) * others_permits // (4 * permits)
