"""Every change is in the table of legal changes, by its owner, from the state that was there."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.base.states import NEW, RUN_CHANGES, TASK_CHANGES, Owner, TaskState
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.subjects import RUN_ENDS, Run, Task

_OWNERS = {"leader": Owner.COORDINATOR, "worker": Owner.WORKER, "client": Owner.SUBMITTER}
_RUN_CHANGES = {(str(a), str(b)): owner for (a, b), owner in RUN_CHANGES.items()}
_TASK_CHANGES = {(str(a), str(b)): owner for (a, b), owner in TASK_CHANGES.items()}


class LegalEdge(Rule):
    """Every change of a run or a task is legal, made by its owner, and starts where the last one ended."""

    id = "legal_edge"

    def watch(self, on: Watch) -> None:
        on.runs(self.run)
        on.tasks(self.task)

    def run(self, event: Event, run: Run) -> None:
        self._change(event, f"run {run.id}", run.state, _RUN_CHANGES)
        if event.before == NEW:
            digest = event.data.get("graph")
            # Without its graph most rules have nothing to say of a run: better to be told.
            if self.world.plan(digest or "") is None and (
                digest or event.data.get("kind") != "hold"
            ):
                self.report(event, f"run {run.id} names graph {digest!r}, which is not at hand.")

    def task(self, event: Event, task: Task) -> None:
        run = task.run
        if run.state == NEW:
            self.report(event, f"task {task.id} belongs to run {run.id}, which was never queued.")
        if task.state == NEW and run.state in RUN_ENDS:
            # Tasks of a succeeded run are forgotten; that it had ended is reported by `terminal`.
            return
        deputy = Owner.COORDINATOR if self._hands_back_for_the_lost(event, task) else None
        self._change(event, f"task {task.id}", task.state, _TASK_CHANGES, deputy)

    def _hands_back_for_the_lost(self, event: Event, task: Task) -> bool:
        """What a worker was told to leave behind is handed back for it, once it is gone and not before."""
        if (event.before, event.after) != (TaskState.RUNNING, TaskState.HANDED_BACK):
            return False
        worker = self.world.workers.get(task.worker)
        return worker is not None and (worker.leaving or worker.gone)

    def _change(
        self,
        event: Event,
        who: str,
        believed: str,
        legal: dict[tuple[str, str], Owner],
        deputy: Owner | None = None,
    ) -> None:
        before, after = event.before, event.after
        if before != believed:
            self.report(event, f"{who} goes {before} → {after}, but it is {believed}.")
        owner = legal.get((before, after))
        if owner is None:
            self.report(event, f"{who} goes {before} → {after}, which is no legal change.")
            return
        actor = event.actor
        if "by" in event.data and actor.startswith("leader:"):
            actor = str(event.data["by"])
        made_by = _OWNERS.get(actor.partition(":")[0])
        if made_by is not owner and (deputy is None or made_by is not deputy):
            self.report(
                event, f"{who} goes {before} → {after} by {actor!r}; that change is the {owner}'s."
            )
