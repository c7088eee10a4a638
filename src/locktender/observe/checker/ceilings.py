"""Limits that all runs share: pools, the run gate, tags. Judged at the end of each commit that starts something.

A lowered limit is not violated by what was there: only a new grant that leaves
more in use than the limit is.
"""

from __future__ import annotations

from locktender.base.events import Event
from locktender.base.names import UNLIMITED
from locktender.observe.checker.report import Peak, Violation
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.world import World


class CeilingRule(Rule):
    """Measures usage against a limit and remembers the peak."""

    id = "ceilings"

    def __init__(self, world: World, found: list[Violation]) -> None:
        super().__init__(world, found)
        self._peaks: dict[str, tuple[int, int]] = {}
        self._exceeded: set[str] = set()

    def watch(self, on: Watch) -> None:
        on.closed(self.close)

    def close(self) -> None:
        raise NotImplementedError

    def measure(self, name: str, limit: int, used: int, event: Event, what: str) -> None:
        """`used` of `limit` after a grant by `event`; `what` names the limit and its unit."""
        known = self._peaks.get(name)
        if known is None or used > known[1]:
            self._peaks[name] = limit, used
        if limit != UNLIMITED and used > limit:
            self._exceeded.add(name)
            self.report(event, f"{what}: {used} in use with a limit of {limit}.")

    def peaks(self) -> list[Peak]:
        return [
            Peak(name, limit, peak, name not in self._exceeded)
            for name, (limit, peak) in sorted(self._peaks.items())
        ]


class PoolCeiling(CeilingRule):
    """Slots of a pool held by scheduled and running tasks never exceed its limit; a paused pool grants none."""

    def watch(self, on: Watch) -> None:
        super().watch(on)
        on.limits(self.limit)

    def limit(self, event: Event) -> None:
        if self.world.unreadable is not None:
            self.report(event, f"a limit cannot be read: {self.world.unreadable}")

    def close(self) -> None:
        latest: dict[str, Event] = {}
        for event, task in self.world.grants:
            for pool in task.pools:
                latest[pool] = event
        limits, used = self.world.in_force.limits, self.world.used
        for pool, event in latest.items():
            rule = limits.pool(pool)
            if rule is not None and rule.paused:
                self.report(event, f"pool {pool!r} granted slots while it was paused.")
            limit = UNLIMITED if rule is None else rule.limit
            self.measure(f"pool:{pool}", limit, used.get(pool, 0), event, f"pool {pool!r}")

    def peaks(self) -> list[Peak]:
        idle = [
            Peak(f"pool:{name}", rule.limit, 0, True)
            for name, rule in self.world.in_force.pools.items()
            if f"pool:{name}" not in self._peaks and not name.endswith("[*]")
        ]
        return sorted([*super().peaks(), *idle], key=lambda peak: peak.name)


class RunCeiling(CeilingRule):
    """Executing runs never exceed the run gate nor any tag's limit; what is paused starts nothing."""

    def close(self) -> None:
        world, starts = self.world, [(e, r) for e, r in self.world.starts if r.kind != "hold"]
        if not starts:
            return
        limits = world.in_force.limits
        event, _ = starts[-1]
        if limits.runs_paused:
            self.report(event, f"{len(starts)} runs started while runs were paused.")
        self.measure("runs", limits.max_concurrent_runs, world.executing, event, "run gate")
        seen: dict[str, Event] = {}
        for event, run in starts:
            for rule, slot in world.in_force.tag_rules(run.tags):
                counter = rule.counter(run.tags) or rule.name
                if rule.paused:
                    self.report(event, f"run {run.id} started while tag {rule.name!r} was paused.")
                if counter in seen:
                    continue
                seen[counter] = event
                used = world.executing_tags.get(slot, 0)
                self.measure(f"tag:{counter}", rule.limit, used, event, f"tag {counter!r}")
