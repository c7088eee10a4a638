"""Workers are offered only what they have permits and labels for."""

from __future__ import annotations

from locktender.base.events import Event
from locktender.base.names import UNLIMITED
from locktender.observe.checker.ceilings import CeilingRule
from locktender.observe.checker.report import Peak
from locktender.observe.checker.subjects import Task, Worker


class Permits(CeilingRule):
    """Tasks offered to or running on a worker never exceed its permits, per executor and in all.

    A worker's own events race the leader's commit: a change or a loss since the
    leader's last commit is held against the next one, not against this.
    """

    def close(self) -> None:
        if not self.world.workers:
            return
        latest: dict[tuple[str, str], Event] = {}
        for event, task in self.world.grants:
            if task.executor == "hold":
                continue
            worker = self.world.workers.get(task.worker)
            if worker is None or worker.gone:
                why = "never joined" if worker is None else "was lost before"
                self.report(
                    event, f"task {task.id} is offered to worker {task.worker!r}, which {why}."
                )
                continue
            latest[(worker.id, task.executor)] = event
            self._check_labels(event, task, worker)
        for (name, executor), event in latest.items():
            self._check_permits(event, self.world.workers[name], executor)

    def _check_labels(self, event: Event, task: Task, worker: Worker) -> None:
        wanted = task.plan.node.needs if task.plan is not None else {}
        missing = {k: v for k, v in wanted.items() if worker.labels.get(k) != v}
        if missing:
            self.report(
                event, f"task {task.id} needs {missing} and went to worker {worker.id!r} without."
            )

    def _check_permits(self, event: Event, worker: Worker, executor: str) -> None:
        permits, total = worker.permits.get(executor, 0), worker.total
        if worker.earlier is not None:
            permits = _larger(permits, worker.earlier[0].get(executor, 0))
            total = _larger(total, worker.earlier[1])
        name = f"worker {worker.id!r}"
        used = worker.by_executor.get(executor, 0)
        self.measure(f"{name}:{executor}", permits, used, event, f"{executor} permits of {name}")
        self.measure(name, total, worker.in_flight, event, f"permits of {name}")

    def peaks(self) -> list[Peak]:
        """Permits are the workers' own affair; a table of limits would drown in them."""
        return []


def _larger(one: int, other: int) -> int:
    return UNLIMITED if UNLIMITED in {one, other} else max(one, other)
