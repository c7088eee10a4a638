"""The tally of one kind of work: how much of it each worker has had, and how long it takes there.

The leader's own worker begins what it is given with the commit that decides it,
and its ends are known to the next. Any other is offered a task, answers, and
writes the end: three commits and two messages. Where bodies are short the
leader's own permits so come round twice as often, and unlimited ones take
whatever there is: it would have most of the work, for being near and not for
being fast.

So while it is ahead of an equal worker by more than a third, for each permit it
has, it is given nothing more until that one has answered, or one of its bodies has
ended. A worker whose bodies take clearly longer is not its equal, and rightly gets
fewer. What a worker missed because it was slow, or did not answer, is forgiven: nobody
waits for it to catch up. Nor is anything carried over: when this work is done all
begin anew, and of what has been going on for long only the last part counts.
"""

from __future__ import annotations

SLACK = 2
"""Tasks that one may be ahead of another whatever the proportion: so few are no imbalance."""
SPAN = 1_000
"""When anybody has had so many, all counts are halved."""
SMOOTHING = 128
"""A duration counts for one part in so many of the mean, once there are as many."""
FEW = 32
"""With fewer durations than these nobody is called slow: the first bodies of a process take longest."""
A_WHILE_US = 50_000
"""How long a worker may take, beside its bodies, until it is heard of again."""
MOST_WHILE_US = 250_000
"""Where bodies take long, being near is no advantage: nobody waits for them to end."""
UNTOLD_US = 10_000
"""Of a difference in duration so much is nobody's fault: a loop that was busy, a commit that was awaited."""


class Tally:
    __slots__ = ("_flying", "_given", "_lasted", "in_flight")

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        self._flying: dict[str, int] = {}
        """Of what was given, how much has not ended."""
        self.in_flight: int = 0
        """The sum of these."""
        self._lasted: dict[str, tuple[int, int]] = {}
        """How many durations were told, and their mean."""

    def gave(self, worker: str) -> None:
        given = self._given
        count = given.get(worker)
        if count is None:
            # It came later than the others: it starts at the present, and not with all they had to catch up.
            count = min(given.values(), default=0)
        given[worker] = count + 1
        if count >= SPAN:
            self._given = {each: had // 2 for each, had in given.items()}
        self._flying[worker] = self._flying.get(worker, 0) + 1
        self.in_flight += 1

    def left(self, worker: str) -> None:
        """A task that it was given is no longer in flight there."""
        flying = self._flying.get(worker, 0)
        if flying:  # else it was given while nobody counted
            self._flying[worker] = flying - 1
            self.in_flight -= 1

    def begin_anew(self) -> None:
        """Nothing of this work is left: what comes next is compared by itself."""
        self._given = dict.fromkeys(self._given, 0)

    def busy(self, worker: str) -> bool:
        """Whether anything of this work is in its hands: offered, or running."""
        return self._flying.get(worker, 0) > 0

    def a_while(self, worker: str) -> int:
        """How soon one like `worker` is heard of again while its bodies run, if they take what they take here."""
        told, mean = self._lasted.get(worker, (0, 0))
        return min(MOST_WHILE_US, A_WHILE_US + 2 * mean) if told else MOST_WHILE_US

    def lasted(self, worker: str, took_us: int) -> None:
        """An attempt ran there for so long."""
        told, mean = self._lasted.get(worker, (0, 0))
        told = min(told + 1, SMOOTHING)
        self._lasted[worker] = told, mean + (took_us - mean) // told

    def forget(self, worker: str) -> None:
        self._given.pop(worker, None)
        self._lasted.pop(worker, None)
        self.in_flight -= self._flying.pop(worker, 0)

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
