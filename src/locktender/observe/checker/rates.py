"""Grants over time."""

from __future__ import annotations

from locktender.base.limits import Rate
from locktender.observe.checker.report import Violation
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.world import World


class Rates(Rule):
    """Between any two grants of a pool with a rate: slots granted ≤ burst + rate × elapsed.

    Replayed as GCRA, which is that sentence for all pairs at once, in whole
    numbers: instants are multiplied by `count`, so that no fraction is lost.
    """

    id = "rates"
    across = True

    def __init__(self, world: World, found: list[Violation]) -> None:
        super().__init__(world, found)
        self._buckets: dict[str, tuple[tuple[str, int], int]] = {}

    def watch(self, on: Watch) -> None:
        on.closed(self.close)

    def close(self) -> None:
        in_force = self.world.in_force
        for event, task in self.world.grants:
            for pool, slots in task.pools.items():
                rule = in_force.limits.pool(pool)
                if rule is None or rule.rate is None:
                    continue
                regime = in_force.regime(pool)
                known, arrival = self._buckets.get(pool, (regime, 0))
                if known != regime:
                    arrival = 0
                arrival, over = self._grant(rule.rate, arrival, event.at, slots)
                self._buckets[pool] = regime, arrival
                if over > 0:
                    rate = rule.rate
                    early = -(-over // rate.count)
                    self.report(
                        event,
                        f"pool {pool!r} granted {slots} slots {early} µs too early for its rate "
                        f"of {rate.count} per {rate.per_us} µs with a burst of {rate.burst}.",
                    )

    def _grant(self, rate: Rate, arrival: int, at: int, slots: int) -> tuple[int, int]:
        """The next theoretical arrival, and by how much (× count) it lies beyond what is allowed."""
        now = at * rate.count
        arrival = max(arrival, now) + slots * rate.per_us
        allowed = now + rate.burst * rate.per_us + self.world.history.slack_us * rate.count
        return arrival, arrival - allowed
