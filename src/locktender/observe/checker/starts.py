"""No thundering herd."""

from __future__ import annotations

from locktender.observe.checker.report import Violation
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.world import World


class MaxStarts(Rule):
    """One cycle starts at most `max_starts_per_cycle` tasks."""

    id = "max_starts"

    def __init__(self, world: World, found: list[Violation]) -> None:
        super().__init__(world, found)
        self._cycle = (0, 0)
        self._starts = 0

    def watch(self, on: Watch) -> None:
        on.closed(self.close)

    def close(self) -> None:
        commit = self.world.commit
        if (commit.term, commit.cycle) != self._cycle:
            self._cycle, self._starts = (commit.term, commit.cycle), 0
        grants = self.world.grants
        self._starts += len(grants)
        limit = self.world.in_force.limits.max_starts_per_cycle
        if grants and 0 <= limit < self._starts:
            self.report(
                grants[-1][0],
                f"cycle {commit.cycle} of term {commit.term} starts {self._starts} tasks; "
                f"{limit} are allowed.",
            )
