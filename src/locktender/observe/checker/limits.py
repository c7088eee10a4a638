"""Rules on limits: pools, runs, tags, windows, parallelism, permits, labels, rates; slots held all or none."""

from __future__ import annotations

from typing import Any, Final

from locktender.base.clock import SECOND
from locktender.base.events import Event
from locktender.base.limits import Rate
from locktender.base.names import UNLIMITED
from locktender.base.states import NEW
from locktender.observe.checker.history import NodePlan, Peak, Violation
from locktender.observe.checker.rule import Rule, Watch
from locktender.observe.checker.state import (
    HOLDING_TASKS,
    RUN_ENDS,
    CheckedRun,
    CheckedTask,
    CheckedWorker,
)
from locktender.observe.checker.world import HistoryState

MAX_PEAKS_SAVED: Final = 10_000
"""Of more limits (one per value of a tag) a later audit knows the peaks that came nearest to their limit."""
_STALE_US: Final = 60 * SECOND


class CeilingRule(Rule):
    """Measures usage against a limit and remembers the peak."""

    id = "ceilings"

    def __init__(self, world: HistoryState, found: list[Violation]) -> None:
        super().__init__(world, found)
        self._peaks: dict[str, tuple[int, int]] = {}
        self._exceeded: set[str] = set()

    def watch(self, on: Watch) -> None:
        on.closed(self.close)

    def close(self) -> None:
        raise NotImplementedError

    def measure(self, name: str, limit: int, used: int, event: Event, what: str) -> None:
        """`used` of `limit` after a grant by `event`; `what` names the limit and its unit."""
        if self.facts and event.seq <= self.world.history.thinned:
            return  # what the limit was then is not known any more
        self.remember(name, limit, used)
        if limit != UNLIMITED and used > limit:
            self._exceeded.add(name)
            self.report(event, f"{what}: {used} in use with a limit of {limit}.")

    def remember(self, name: str, limit: int, used: int) -> None:
        known = self._peaks.get(name)
        if known is None or used > known[1]:
            self._peaks[name] = limit, used

    def kept(self) -> dict[str, Any]:
        kept = super().kept()
        if len(self._peaks) > MAX_PEAKS_SAVED:
            names = sorted(self._peaks, key=self._share, reverse=True)[:MAX_PEAKS_SAVED]
            kept["_peaks"] = {name: self._peaks[name] for name in names}
            kept["_exceeded"] = self._exceeded.intersection(names)
        return kept

    def _share(self, name: str) -> tuple[bool, float, int]:
        limit, peak = self._peaks[name]
        return name in self._exceeded, peak / limit if limit > 0 else 0.0, peak

    def peaks(self) -> list[Peak]:
        return [
            Peak(name, limit, peak, name not in self._exceeded)
            for name, (limit, peak) in sorted(self._peaks.items())
        ]


class PoolCeiling(CeilingRule):
    """Slots of a pool held by scheduled and running tasks never exceed its limit; a paused pool grants none."""

    facts = True

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
    """Executing runs never exceed the run gate nor any tag's limit; what is paused starts nothing.
    At a tag's limit that counts waiting runs, a run that has started counts until it ends."""

    facts = True

    def close(self) -> None:
        world = self.world
        # A waiting run that is cancelled executes without a place; if it takes one, that is a return.
        placed = [(e, r) for e, r in world.starts if e.data.get("placed", True)]
        starts = [(e, r) for e, r in (*placed, *world.returns) if r.kind != "hold"]
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
                if rule.counts_while_waiting:
                    used += world.kept_tags.get((rule.name, slot[1]), 0)
                self.measure(f"tag:{counter}", rule.limit, used, event, f"tag {counter!r}")


class RunParallelism(CeilingRule):
    """A run's tasks in flight stay within its parallelism, in all and per executor; a sequential run has one."""

    def close(self) -> None:
        latest: dict[tuple[int, str], tuple[Event, CheckedRun]] = {}
        for event, task in self.world.grants:
            latest[(task.run.id, task.executor)] = event, task.run
        for (_, executor), (event, run) in latest.items():
            if run.plan is None:
                continue
            graph = run.plan.graph
            if graph.sequential:
                self._measure(run, f"sequential:{run.flow}", 1, run.in_flight, event)
            if graph.max_parallel is not None:
                name = f"parallel:{run.flow}"
                self._measure(run, name, graph.max_parallel, run.in_flight, event)
            if executor in graph.max_parallel_by:
                name, limit = f"parallel:{run.flow}:{executor}", graph.max_parallel_by[executor]
                self._measure(run, name, limit, run.by_executor.get(executor, 0), event)

    def _measure(self, run: CheckedRun, name: str, limit: int, used: int, event: Event) -> None:
        self.measure(name, limit, used, event, f"{name} of run {run.id}")


class Window(CeilingRule):
    """Items of a mapped step in flight never exceed its window."""

    def close(self) -> None:
        latest: dict[tuple[int, int], tuple[Event, CheckedTask]] = {}
        for event, task in self.world.grants:
            if task.plan is not None and task.plan.node.window is not None:
                latest[(task.run.id, task.node)] = event, task
        for event, task in latest.values():
            if task.plan is None or task.plan.node.window is None or not task.run.nodes:
                continue
            name = f"window:{task.run.flow}/{task.plan.node.name}"
            used = task.run.nodes[task.node].in_flight
            what = f"{name} of run {task.run.id}"
            self.measure(name, task.plan.node.window, used, event, what)


class Permits(CeilingRule):
    """Tasks offered to or running on a worker never exceed its permits, per executor and in all.
    A worker that is lost or stalled is offered none.

    A worker's own events race the leader's commit: a change or a loss since the
    leader's last commit is held against the next one, not against this.
    """

    facts = True

    def close(self) -> None:
        if not self.world.any_worker:
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
            if worker.stalled:
                self.report(
                    event, f"task {task.id} is offered to worker {task.worker!r}, which is stalled."
                )
            latest[(worker.id, task.executor)] = event
            self._check_labels(event, task, worker)
        for (name, executor), event in latest.items():
            self._check_permits(event, self.world.workers[name], executor)

    def _check_labels(self, event: Event, task: CheckedTask, worker: CheckedWorker) -> None:
        wanted = task.plan.node.needs if task.plan is not None else {}
        missing = {k: v for k, v in wanted.items() if worker.labels.get(k) != v}
        if missing:
            self.report(
                event, f"task {task.id} needs {missing} and went to worker {worker.id!r} without."
            )

    def _check_permits(self, event: Event, worker: CheckedWorker, executor: str) -> None:
        permits, total = worker.permits.get(executor, 0), worker.total
        if worker.earlier is not None:
            permits = _larger(permits, worker.earlier[0].get(executor, 0))
            total = _larger(total, worker.earlier[1])
        name = f"worker {worker.id!r}"
        used = worker.by_executor.get(executor, 0)
        self.measure(f"{name}:{executor}", permits, used, event, f"{executor} permits of {name}")
        self.measure(name, total, worker.in_flight, event, f"permits of {name}")

    def remember(self, name: str, limit: int, used: int) -> None:
        """Nothing: permits are the workers' own affair; a table of limits would drown in them."""


def _larger(one: int, other: int) -> int:
    return UNLIMITED if UNLIMITED in {one, other} else max(one, other)


class Rates(Rule):
    """Between any two grants of a pool with a rate: slots granted ≤ burst + rate × elapsed.

    Replayed as GCRA, which is that sentence for all pairs at once, in whole
    numbers: instants are multiplied by `count`, so that no fraction is lost.
    """

    id = "rates"
    across = True

    def __init__(self, world: HistoryState, found: list[Violation]) -> None:
        super().__init__(world, found)
        self._buckets: dict[str, tuple[tuple[tuple[str, int], int], int]] = {}

    def watch(self, on: Watch) -> None:
        on.closed(self.close)

    def close(self) -> None:
        in_force = self.world.in_force
        for event, task in self.world.grants:
            for pool, slots in task.pools.items():
                rule = in_force.limits.pool(pool)
                if rule is None or rule.rate is None:
                    continue
                regime = (in_force.regime(pool), self.world.clock_unknown)
                known, arrival = self._buckets.get(pool, (regime, 0))
                if known != regime:
                    arrival = 0
                at = event.at - self.world.clock_moved_us
                arrival, over = self._grant(rule.rate, arrival, at, slots)
                self._buckets[pool] = regime, arrival
                if over > 0:
                    rate = rule.rate
                    early = -(-over // rate.count)
                    self.report(
                        event,
                        f"pool {pool!r} granted {slots} slots {early} µs too early for its rate "
                        f"of {rate.count} per {rate.per_us} µs with a burst of {rate.burst}.",
                    )

    def kept(self) -> dict[str, Any]:
        """Without pools whose rate has long been free: they are as if they had never granted anything."""
        free = self.world.commit.at - self.world.clock_moved_us - _STALE_US
        limits = self.world.in_force.limits
        buckets = {
            pool: bucket
            for pool, bucket in self._buckets.items()
            if (rule := limits.pool(pool)) is not None
            and rule.rate is not None
            and bucket[1] > free * rule.rate.count
        }
        return {**super().kept(), "_buckets": buckets}

    def _grant(self, rate: Rate, arrival: int, at: int, slots: int) -> tuple[int, int]:
        """The next theoretical arrival, and by how much (× count) it lies beyond what is allowed."""
        now = at * rate.count
        arrival = max(arrival, now) + slots * rate.per_us
        allowed = now + rate.burst * rate.per_us + self.world.history.slack_us * rate.count
        return arrival, arrival - allowed


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
        if not self.world.complete:
            return
        last = self.world.last_seq
        for pool, used in sorted(self.world.used.items()):
            self.report_at(last, f"pool {pool!r} still has {used} slots in use at the end.")
        for name, worker in sorted(self.world.workers.items()):
            if worker.in_flight:
                self.report_at(
                    last, f"worker {name!r} still has {worker.in_flight} permits in use."
                )
