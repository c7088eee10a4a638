"""Writes grants and waits into the commit, and renders the calls of tasks that start in the leader's process."""

from __future__ import annotations

from itertools import islice

from locktender.base import ids
from locktender.base.changes import Linger, Order, Reservation
from locktender.base.events import Change
from locktender.base.states import TaskState
from locktender.kernel import render
from locktender.kernel.demand import clock_of
from locktender.kernel.entries import TaskEntry
from locktender.kernel.gates.protocol import NO_WAIT
from locktender.kernel.lifecycle import Lifecycle
from locktender.kernel.node_state import PLAIN
from locktender.kernel.placement import Worker
from locktender.kernel.wait_times import waits_of

MAX_CACHED_GRANTS = 256
"""Distinct contents of grants' events that are kept; above this the cache is emptied."""


class GrantWriter:
    """Writes the grants of one term; tokens are counted within the term."""

    def __init__(self, term: int, lifecycle: Lifecycle) -> None:
        self._first_token = ids.token(term, 0)
        self._lifecycle = lifecycle
        self._commit_builder = lifecycle.commit_builder
        self._tokens = 0
        self._known_data: dict[tuple[str, str, tuple[tuple[str, int], ...]], dict[str, object]] = {}

    def grant(self, entry: TaskEntry, worker: Worker, now: int, *, offered: bool) -> None:
        """The task belongs to `worker` from this commit on: offered, or running in the leader's process."""
        builder = self._commit_builder
        self._tokens += 1
        token = entry.token = self._first_token + self._tokens
        entry.worker = worker.id
        entry.scheduled_at = now
        entry.offers += 1
        entry.offered = offered
        data = self._data(entry, worker)
        lane = entry.lane
        if lane is not None and (lane.clock is not NO_WAIT or entry.waits):
            if waits := waits_of(entry, lane, now):
                data = data | {"waits": waits}
                self._lifecycle.ledger.wait_book.add(waits)
            entry.waits = None
        change = Change("task", entry.id, TaskState.REQUESTED, TaskState.SCHEDULED, token, data)
        builder.record(entry.run.seq, change)
        if entry.lane is not None:
            for gate, _ in entry.lane.needs:
                if gate.timed and (bucket := gate.dump()) is not None:
                    builder.commit.buckets.append(bucket)
        if not offered:
            entry.state = TaskState.RUNNING
            entry.attempt += 1
            entry.started_at = now
            change = Change(
                "task", entry.id, TaskState.SCHEDULED, TaskState.RUNNING, token, worker.by
            )
            builder.record(entry.run.seq, change)
        else:
            entry.state = TaskState.SCHEDULED
            builder.commit.orders.append(Order(worker.id, entry.id, token, "offer"))
            # Every gate but the worker's is passed: the clock of its dispatch deadline runs from the first offer.
            entry.eligible_at = clock_of(entry) or now
            self._lifecycle.watch_offer(entry, now)
        builder.save(entry)

    def _data(self, entry: TaskEntry, worker: Worker) -> dict[str, object]:
        """What the event carries: one dictionary for all grants alike. Never change it: events share it."""
        key = worker.id, entry.spec.executor, entry.pools
        data = self._known_data.get(key)
        if data is None:
            if len(self._known_data) > MAX_CACHED_GRANTS:
                self._known_data.clear()
            pools = dict(entry.pools)
            made: dict[str, object] = {"worker": worker.id, "pools": pools, "executor": key[1]}
            data = self._known_data[key] = made
        return data


MAX_RESERVATIONS_EACH_CYCLE = 64
MAX_RESERVATIONS_WRITTEN = 1_000


def write_sets(lifecycle: Lifecycle, *, swept: bool) -> None:
    """Sets that are written whole where they changed, for `why` and the next leader to read."""
    ledger, commit = lifecycle.ledger, lifecycle.commit_builder.commit
    queue = ledger.task_queue
    # Many reservations are written once a second only.
    if queue.reservations_changed and (swept or len(queue.reserved) <= MAX_RESERVATIONS_EACH_CYCLE):
        queue.reservations_changed = False
        commit.reservations = [
            Reservation(waiter.id, pool.name, slots)
            for lane, waiter in islice(queue.reserved.items(), MAX_RESERVATIONS_WRITTEN)
            for pool, slots in lane.slots
        ]
    if ledger.lingering_changed:
        ledger.lingering_changed = False
        commit.lingers = [
            Linger(task, token, pool, slots, until, worker)
            for (task, token, pool), (slots, until, worker) in ledger.lingering.items()
        ]
    if ledger.workers.silences_changed:
        ledger.workers.silences_changed = False
        commit.silences = ledger.workers.silences()


MAX_CACHED_MAPS = 256
"""Maps whose shared arguments are kept, rendered; above this the cache is emptied."""


class Calls:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._of_items: dict[tuple[int, int, int], render.ItemCall] = {}

    def of(self, entry: TaskEntry) -> bytes:
        value = entry.input or render.NULL
        if entry.idx == PLAIN:
            return value
        # A retried run may have other values for what its items share.
        key = (entry.run.seq, entry.run.row.generation, entry.node)
        known = self._of_items.get(key)
        if known is None:
            if len(self._of_items) > MAX_CACHED_MAPS:
                self._of_items.clear()
            scope = self._lifecycle.run_graphs[entry.run.seq].scope
            common = render.shared(entry.spec, scope)
            known = self._of_items[key] = render.ItemCall(entry.spec, common)
        return known.of(value)
