"""Nothing is lost."""

from __future__ import annotations

from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.subjects import ACTIVE, OPEN, STANDING


class NoLoss(Rule):
    """When the system is idle, every queued run has ended and so has every requested task."""

    id = "no_loss"

    def watch(self, on: Watch) -> None:
        if self.world.history.complete:
            on.ended(self.finish)

    def finish(self) -> None:
        events = self.world.history.events
        seq = events[-1].seq if events else 0
        for run in self.world.runs.values():
            if run.state in ACTIVE:
                self.report_at(seq, f"run {run.id} is still {run.state} at the end.", run=run.id)
            for task in run.tasks.values() if run.open else ():
                if STANDING.get(task.state, OPEN) == OPEN:
                    self.report_at(
                        seq,
                        f"task {task.id} ({task.name}) is still {task.state} at the end.",
                        run=run.id,
                        task=task.id,
                    )
