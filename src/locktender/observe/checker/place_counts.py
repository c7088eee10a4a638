"""Which runs have a place, and what counts at the run gate and in tags' limits; a part of the checker's state.

A run has a place while it executes, unless it gave it back. At a limit of a tag that counts while waiting, a run
that has started counts until it ends or is held, whether it has a place or not.
"""

from __future__ import annotations

from locktender.base.events import Event
from locktender.observe.checker.limits_in_force import InForce, TagSlot
from locktender.observe.checker.state import EXECUTING, CheckedRun, add_to, enrol


class PlaceCounts:
    """A part of `HistoryState`."""

    def __init__(self) -> None:
        self.in_force: InForce = InForce()
        self.executing: int = 0
        self.executing_tags: dict[TagSlot, int] = {}
        self.executing_keys: dict[str, set[int]] = {}
        self.kept_tags: dict[TagSlot, int] = {}
        """Runs without a place, by the limit that counts them all the same and the value that it counts."""
        self.starts: list[tuple[Event, CheckedRun]] = []
        self.returns: list[tuple[Event, CheckedRun]] = []
        """Runs that took a place again."""
        self.unplaced: int = 0

    def apply_place(self, event: Event, run: CheckedRun) -> None:
        placed = event.after == "held"
        if placed == run.placed or run.state not in EXECUTING:
            return
        (self.keep_no_more if placed else self.keep_places)(run)
        self._count_place(run, 1 if placed else -1)
        run.placed = placed
        self.unplaced += -1 if placed else 1
        if placed:
            self.returns.append((event, run))

    def start_executing(self, event: Event, run: CheckedRun) -> None:
        placed = event.data.get("placed", True)
        if placed:
            self.keep_no_more(run)
        else:
            run.placed, self.unplaced = False, self.unplaced + 1
        self._count_executing(run, 1)
        self.starts.append((event, run))

    def stop_executing(self, run: CheckedRun, *, waits: bool) -> None:
        if waits and run.placed:
            self.keep_places(run)
        self._count_executing(run, -1)
        self.unplaced -= not run.placed
        run.placed = True

    def _count_executing(self, run: CheckedRun, step: int) -> None:
        if run.key is not None:
            enrol(self.executing_keys, run.key, run.id, step)
        if run.placed:
            self._count_place(run, step)

    def _count_place(self, run: CheckedRun, step: int) -> None:
        if run.kind == "hold":
            return
        self.executing += step
        for key, value in run.tags.items():
            add_to(self.executing_tags, (key, None), step)
            add_to(self.executing_tags, (key, value), step)

    def keep_places(self, run: CheckedRun) -> None:
        """It gives its place back, except at limits that say so now."""
        if run.kind == "hold":
            return
        run.keeps = tuple(
            (rule.name, value)
            for rule, (_, value) in self.in_force.tag_rules(run.tags)
            if rule.counts_while_waiting
        )
        for each in run.keeps:
            add_to(self.kept_tags, each, 1)

    def keep_no_more(self, run: CheckedRun) -> None:
        for each in run.keeps:
            add_to(self.kept_tags, each, -1)
        run.keeps = ()
