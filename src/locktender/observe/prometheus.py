"""An engine's numbers as metrics of Prometheus.

The number of series is bounded: labels are kinds (gates, states, executors),
the names of the first fifty steps, and the few sessions that delay the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal

from locktender.base.clock import SECOND
from locktender.base.model import HeldUp, WorkerRow
from locktender.observe.checker import RULES
from locktender.observe.exposition import Family
from locktender.observe.metrics import Metrics, Spread
from locktender.store.protocol import OpenRuns

_RULES = sorted({rule.id for rule in RULES})


class Exposition:
    """The text of one engine's metrics."""

    def __init__(self, metrics: Metrics, *, may_lead: bool) -> None:
        self.stale_writes: int = 0
        """As the store counts them; the caller of `refresh` sets it first."""
        self.listener_replaced: int = 0
        self.held_up: HeldUp = HeldUp()
        """As the store last said."""
        self.open_runs: OpenRuns | None = None
        self.max_active: int = -1
        self.rejections: Mapping[str, int] = {}
        self.now: int = 0
        """The store's time when `open_runs` was read."""
        self._metrics = metrics
        self._may_lead = may_lead
        self.found: list[Family] = []

    def refresh(self) -> None:
        """Reads the numbers, on the engine's loop; `text` formats them."""
        self.found = list(self._read())

    def text(self) -> bytes:
        """Takes longer than `refresh`: may be called from another thread."""
        return "".join(family.text() for family in self.found).encode()

    def _read(self) -> Iterator[Family]:
        yield _counter(
            "locktender_stale_writes",
            "Writes of attempts that were no longer the writer's; they changed nothing.",
            self.stale_writes,
        )
        yield _counter(
            "locktender_listener_replaced",
            "Connections for notifications that were lost and made anew.",
            self.listener_replaced,
        )
        yield _counters(
            "locktender_rejections",
            "Runs that an admission ceiling refused in this process, by the rule that sets it.",
            "ceiling",
            {"max_active": 0, **self.rejections},
        )
        yield from _of_sessions(self.held_up)
        if self._may_lead:
            if self.open_runs is not None:
                yield from _of_open_runs(self.open_runs, self.max_active, self.now)
            yield from _of_leader(self._metrics)
            yield from _of_pools(self._metrics)
        if self._metrics.describe is not None:
            yield from _of_worker(self._metrics, self._metrics.describe())


def _of_sessions(held_up: HeldUp) -> Iterator[Family]:
    yield _gauge(
        "locktender_history_lag_seconds",
        "How far audit, checkpoints and pruning lag behind an open transaction; runs do not wait for it.",
        held_up.lag_us / SECOND,
    )
    family = Family(
        "gauge",
        "locktender_blocking_session_seconds",
        "Sessions of the database server that delay the store, by what they hold (lock, history, cleanup):"
        " the age of the transaction.",
    )
    for each in held_up.sessions:
        family.add(
            (each.age_us or 0) / SECOND,
            holds=each.holds,
            pid=str(each.pid),
            application=each.application,
            database=each.database,
        )
    yield family


def _of_open_runs(open_runs: OpenRuns, max_active: int, now: int) -> Iterator[Family]:
    yield _gauges(
        "locktender_runs",
        "Runs that are not over, by state, as the store has them: the same in every process.",
        "state",
        {
            "queued": open_runs.queued,
            "running": open_runs.executing,
            "held": open_runs.held,
            "waiting": open_runs.waiting,
        },
    )
    waited_us = now - open_runs.oldest_at if open_runs.oldest_at else 0
    yield _gauge(
        "locktender_queue_oldest_seconds",
        "How long the run has waited that was queued first; 0: none is queued.",
        max(0, waited_us) / SECOND,
    )
    yield _gauge(
        "locktender_active_runs",
        "Runs that count under the admission ceiling max_active.",
        open_runs.active,
    )
    yield _gauge(
        "locktender_active_runs_limit", "max_active; -1: there is no such ceiling.", max_active
    )


def _of_pools(metrics: Metrics) -> Iterator[Family]:
    pools = metrics.pools()
    yield _gauges(
        "locktender_pool_used_slots",
        "Slots in use, by pool; keys of one pool together. Only where this process leads.",
        "pool",
        {name: each.used for name, each in pools.items()},
    )
    yield _gauges(
        "locktender_pool_limit_slots",
        "The pool's limit, of a keyed pool the sum over its keys in use; -1: unlimited.",
        "pool",
        {name: each.limit for name, each in pools.items()},
    )
    yield _gauges(
        "locktender_pool_waiting_tasks",
        "Tasks that the pool, or its rate, blocks now.",
        "pool",
        {name: each.waiting for name, each in pools.items()},
    )


def _of_leader(metrics: Metrics) -> Iterator[Family]:
    yield _gauge("locktender_leader", "1 while this process leads.", int(metrics.term > 0))
    yield _gauge("locktender_term", "The term it leads in; 0 while another leads.", metrics.term)
    yield _counter(
        "locktender_take_overs", "Terms in which this process began to lead.", metrics.take_overs
    )
    yield _gauge(
        "locktender_failed_terms",
        "Terms of this process in a row that failed for data of no run; 0 after one that lasts.",
        metrics.failed_terms,
    )
    yield _gauge(
        "locktender_demand_tasks",
        "Tasks that lack only a worker, as the leader found them; 0 where it does not lead.",
        metrics.demand,
    )
    yield _gauges(
        "locktender_demand_by_labels_tasks",
        "Tasks that lack only a worker, by the labels that they need of one.",
        "labels",
        metrics.demand_by_labels,
    )
    yield _gauge(
        "locktender_stalled_workers",
        "Workers whose lease has passed and whose process lives; 0 where it does not lead.",
        len(metrics.stalled),
    )
    yield _gauges(
        "locktender_blocked_tasks",
        "Tasks that wait now, by the kind of gate in their way.",
        "gate",
        metrics.blocked(),
    )
    yield _gauge(
        "locktender_unfit_tasks",
        "Tasks of locktender_demand_tasks that no live worker fits.",
        metrics.unfit,
    )
    yield _gauge(
        "locktender_oldest_offer_seconds",
        "How long the oldest offer has had no answer: its task is scheduled and not accepted.",
        metrics.oldest_offer_us / SECOND,
    )
    yield _gauge(
        "locktender_silent_workers",
        "Workers that keep their lease and left their last offers unanswered.",
        metrics.silent,
    )
    yield _gauge(
        "locktender_unadvanced_runs",
        "Executing runs of which nothing is requested, in flight or waiting.",
        metrics.unadvanced,
    )
    yield _gauge(
        "locktender_sweep_age_seconds",
        "How long ago the leader's last sweep ended: about 1; 0 where it does not lead.",
        metrics.sweep_age_us / SECOND,
    )
    yield _gauge(
        "locktender_loop_lag_seconds",
        "How late the loop of a leader was at worst in the last five to ten seconds.",
        metrics.loop_lag.value / SECOND,
    )
    yield _histogram(
        "locktender_commit_seconds", "How long the store took to write a commit.", metrics.commits
    )
    yield _histogram(
        "locktender_change_delay_seconds",
        "From a worker's commit to the leader's cycle that takes it in.",
        metrics.change_delays,
    )
    yield _histogram(
        "locktender_task_wait_seconds",
        "How long tasks that started had been ready to start.",
        metrics.task_waits,
    )
    waits = Family(
        "histogram",
        "locktender_gate_wait_seconds",
        "How long tasks that started had waited at each kind of gate.",
    )
    for gate, spread in metrics.gate_waits.items():
        waits.add_buckets(_buckets(spread), spread.total, gate=gate)
    yield waits
    yield _counters(
        "locktender_offers",
        "Offers of tasks to workers, by what became of them.",
        "outcome",
        metrics.offers,
    )
    yield _counters(
        "locktender_cache_lookups",
        "Lookups of cached results, by what was found.",
        "result",
        metrics.lookups,
    )
    yield _counter(
        "locktender_cycles", "Cycles that decided something.", sum(metrics.cycles.counts)
    )
    yield _histogram(
        "locktender_cycle_seconds",
        "From the beginning of a cycle to the end of its commit.",
        metrics.cycles,
    )
    yield _counter(
        "locktender_runs_started", "Runs that passed the run gates.", metrics.runs_started
    )
    yield _counters("locktender_runs_ended", "Runs that ended.", "state", metrics.runs_ended)
    yield _gauge(
        "locktender_held_runs",
        "Runs that cannot be read, decided or written, and wait for an operator; 0 where it does not lead.",
        metrics.held_now,
    )
    yield _counter("locktender_runs_held", "Runs that became held.", metrics.runs_held)
    yield _counters(
        "locktender_limit_violations",
        "Broken promises that the audit of this process found in the history, by rule.",
        "rule",
        {rule: metrics.audit.violations[rule] for rule in _RULES},
    )
    yield _gauge(
        "locktender_audit_lag_seconds",
        "How old the history is where the leader's audit stands; 0: at its end, or it does not lead.",
        metrics.audit.lag_us / SECOND,
    )


def _of_worker(metrics: Metrics, row: WorkerRow) -> Iterator[Family]:
    yield _gauge(
        "locktender_worker_in_flight_tasks", "Attempts accepted and not ended.", row.in_flight
    )
    yield _gauges(
        "locktender_worker_permits",
        "Attempts it may run at once, by executor; -1: no bound.",
        "executor",
        row.permits,
    )
    yield _histogram("locktender_worker_claim_size", "Tasks accepted per write.", metrics.claims)
    yield _counter(
        "locktender_worker_claims", "Writes that accepted offers.", sum(metrics.claims.counts)
    )
    yield _gauge(
        "locktender_worker_next_claim_tasks",
        "Tasks it would take now, under the pressure it feels.",
        metrics.next_claim,
    )
    # Neither is ever 0 where it is measured; where it is not measured, the line is left out.
    if row.memory:
        yield _gauge("locktender_worker_memory_ratio", "Share of its memory in use.", row.memory)
    if row.lag_us:
        yield _gauge(
            "locktender_worker_loop_lag_seconds",
            "How late its loop was at worst in the last five to ten seconds.",
            row.lag_us / SECOND,
        )
    yield _counters(
        "locktender_worker_loop_blocked",
        "Times an async step blocked the loop.",
        "step",
        metrics.loop_blocked,
    )
    yield _counters(
        "locktender_worker_tasks_completed", "Attempts that ended.", "state", metrics.tasks_ended
    )
    steps = Family(
        "histogram",
        "locktender_worker_task_duration_seconds",
        "From the acceptance of an attempt to its end.",
    )
    for step, durations in metrics.tasks.items():
        steps.add_buckets(_buckets(durations), durations.total, step=step)
    yield steps


def _single(kind: Literal["counter", "gauge"], name: str, text: str, value: float) -> Family:
    family = Family(kind, name, text)
    family.add(value)
    return family


def _labelled(
    kind: Literal["counter", "gauge"],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Family:
    family = Family(kind, name, text)
    for key, value in values.items():
        family.add(value, **{label: key})
    return family


_gauge, _gauges = partial(_single, "gauge"), partial(_labelled, "gauge")
_counter, _counters = partial(_single, "counter"), partial(_labelled, "counter")


def _histogram(name: str, text: str, spread: Spread) -> Family:
    family = Family("histogram", name, text)
    family.add_buckets(_buckets(spread), spread.total)
    return family


def _buckets(spread: Spread) -> list[tuple[str, int]]:
    """Cumulative, as Prometheus wants them."""
    found: list[tuple[str, int]] = []
    below = 0
    for bound, count in zip((*spread.bounds, None), spread.counts, strict=True):
        below += count
        found.append(("+Inf" if bound is None else str(bound), below))
    return found
