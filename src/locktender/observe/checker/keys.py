"""Runs with a key."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.subjects import ACTIVE, Run


class Keys(Rule):
    """At most one run of a key executes; another may be queued only to replace it, and starts after it."""

    id = "keys"
    across = True

    def watch(self, on: Watch) -> None:
        on.runs(self.queue, "queued")
        on.closed(self.close)

    def queue(self, event: Event, run: Run) -> None:
        key = event.data.get("key", run.key)
        if key is None:
            return
        others = self.world.active_keys.get(key, set()) - {run.id}
        if others and event.data.get("waits_for") not in others:
            self.report(
                event,
                f"run {run.id} is queued with key {key!r}, which run {min(others)} has, "
                "and does not wait for it.",
            )

    def close(self) -> None:
        for event, run in self.world.starts:
            if run.key is None:
                continue
            executing = self.world.executing_keys.get(run.key, set())
            if len(executing) > 1:
                self.report(
                    event, f"runs {sorted(executing)} of key {run.key!r} execute at the same time."
                )
            before = None if run.waits_for is None else self.world.runs.get(run.waits_for)
            if before is not None and before.state in ACTIVE:
                self.report(
                    event,
                    f"run {run.id} starts while run {before.id}, which it replaces, is {before.state}.",
                )
