"""Rule: a task holds all its slots or none, from *scheduled* to the end of the attempt."""

from __future__ import annotations

from typing import Any

from locktender.base.events import Event
from locktender.base.states import NEW
from locktender.observe.checker.plan import NodePlan
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import HOLDING_TASKS, RUN_ENDS, CheckedRun, CheckedTask


class AllOrNone(Rule):
    """A task gets all the slots its step asks for, in one change, and no others."""

    id = "all_or_none"

    def watch(self, on: Watch) -> None:
        on.tasks(self.grant, "scheduled")

    def grant(self, event: Event, task: CheckedTask) -> None:
        plan = task.plan
        if plan is None:
            return
        given: dict[str, int] = event.data.get("pools") or {}
        wanted = plan.pools_of(task.run.tags)
        if wanted is None:
            fits = _fits(plan, given)
            wanted = {**plan.pools, **{f"{need.name}[…]": need.slots for need in plan.keyed}}
        else:
            fits = given == wanted
        if not fits:
            self.report(event, f"task {task.id} ({task.name}) needs {wanted} and got {given}.")
        executor: Any = event.data.get("executor")
        if executor is not None and executor != plan.node.executor:
            self.report(
                event,
                f"task {task.id} ({task.name}) is offered as {executor!r}; "
                f"its step runs as {plan.node.executor!r}.",
            )


def _fits(plan: NodePlan, given: dict[str, int]) -> bool:
    """Where a key cannot be rendered from the history: the names' stems and the sums must agree."""
    rest = dict(given)
    for pool, slots in plan.pools.items():
        if rest.pop(pool, None) != slots:
            return False
    stems: dict[str, int] = {}
    for pool, slots in rest.items():
        if not pool.endswith("]"):
            return False
        stem = pool.partition("[")[0]
        stems[stem] = stems.get(stem, 0) + slots
    wanted: dict[str, int] = {}
    for need in plan.keyed:
        wanted[need.name] = wanted.get(need.name, 0) + need.slots
    return stems == wanted


class Conservation(Rule):
    """What is taken is released exactly once; a run that ended and an idle system hold nothing."""

    id = "conservation"

    def watch(self, on: Watch) -> None:
        on.tasks(self.change)
        on.runs(self.end, *RUN_ENDS)
        on.ended(self.finish)

    def change(self, event: Event, task: CheckedTask) -> None:
        holds, comes_from = task.holds, event.before in HOLDING_TASKS
        if event.after == "scheduled":
            if holds:
                self.report(event, f"task {task.id} is granted slots while it holds {task.pools}.")
        elif comes_from and not holds and (task.state != NEW or task.run.state not in RUN_ENDS):
            self.report(
                event,
                f"task {task.id} goes {event.before} → {event.after} and holds nothing: "
                "its slots were never taken, or are released twice.",
            )

    def end(self, event: Event, run: CheckedRun) -> None:
        for task in run.tasks.values() if run.in_flight else ():
            if task.holds:
                self.report(
                    event,
                    f"run {run.id} ends {event.after} while task {task.id} ({task.name}) "
                    f"is {task.state} and holds {task.pools}.",
                )

    def finish(self) -> None:
        events = self.world.history.events
        if not self.world.history.complete or not events:
            return
        for pool, used in sorted(self.world.used.items()):
            self.report_at(
                events[-1].seq, f"pool {pool!r} still has {used} slots in use at the end."
            )
        for name, worker in sorted(self.world.workers.items()):
            if worker.in_flight:
                self.report_at(
                    events[-1].seq, f"worker {name!r} still has {worker.in_flight} permits in use."
                )
