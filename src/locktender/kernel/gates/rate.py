"""Rates: how many slots of a pool may be granted per time, by GCRA.

`tat` (the theoretical arrival time) is the instant at which the bucket is full again. It is kept
in units of 1 / count microseconds, so that every number is a whole one and the rate is exact.
"""

from __future__ import annotations

from typing import ClassVar

from locktender.base.changes import Bucket
from locktender.base.limits import PoolRule, Rate
from locktender.kernel.gates.protocol import UNBOUNDED, Block, SlotGate


class RateGate(SlotGate):
    """In any span of time: slots granted ≤ burst + count × span / per. It has the name of its pool."""

    __slots__ = ("rate", "tat")

    KIND: ClassVar[str] = "rate"
    timed = True

    def __init__(self, name: str, rule: PoolRule) -> None:
        assert rule.rate is not None  # noqa: S101
        super().__init__(name, rule)
        self.rate: Rate = rule.rate
        self.set(rule.rate.burst)
        self.tat: int = 0

    @classmethod
    def wanted(cls, rule: PoolRule) -> bool:
        return rule.rate is not None

    def apply(self, rule: PoolRule, now: int) -> bool:
        new = rule.rate
        if new is None or new == self.rate:
            return False
        # Slots granted and not yet made up for stay owed under the new rate, at its pace.
        self.tat = now * new.count + min(self.owed(now), new.burst) * new.per_us
        self.rate = new
        self.set(new.burst)
        return True

    def blocks(self, need: int, now: int) -> Block | None:
        at = self.granted_at(need)
        if at <= now:
            return None
        spent = min(self.owed(now), self.rate.burst)
        if at == UNBOUNDED:
            return Block(self, "rate", need, spent, self.rate.burst, never=True)
        return Block(self, "rate", need, spent, self.rate.burst, until=at)

    def label(self, reason: str = "rate") -> str:  # noqa: ARG002
        return f"rate:{self.name}"

    def charge(self, need: int, now: int) -> None:
        self.tat = self._charged(need, now)

    def granted_at(self, need: int, *, after: int = 0, now: int = 0) -> int:
        """The earliest instant at which `need` may be granted (in the past: now; `UNBOUNDED`: never).

        `after`: so many slots are granted before it, `now`.
        """
        rate = self.rate
        if need > rate.burst:
            return UNBOUNDED
        tat = self._charged(after, now) if after else self.tat
        return -(-(tat + (need - rate.burst) * rate.per_us) // rate.count)

    def _charged(self, slots: int, now: int) -> int:
        return max(self.tat, now * self.rate.count) + slots * self.rate.per_us

    def owed(self, now: int) -> int:
        """Grants that the bucket still has to make up for, rounded to the safe side."""
        return max(0, -(-(self.tat - now * self.rate.count) // self.rate.per_us))

    def idle(self, now: int) -> bool:
        return self.tat <= now * self.rate.count

    def dump(self) -> Bucket:
        """The bucket in whole microseconds, rounded to the safe side."""
        return Bucket(self.name, min(-(-self.tat // self.rate.count), UNBOUNDED))

    def restore(self, bucket: Bucket) -> None:
        self.tat = bucket.tat * self.rate.count

    def move(self, by_us: int) -> None:
        self.tat += by_us * self.rate.count

    def bound_debt(self, now: int) -> None:
        self.tat = min(self.tat, now * self.rate.count + self.rate.burst * self.rate.per_us)
