"""What is told and written of a task whose turn has come, and of one that was found waiting for a pool.

The calls of tasks that start in the leader's own process: an item put into what all items of its map share.
"""

from __future__ import annotations

from locktender.base import ids
from locktender.base.changes import Order
from locktender.base.events import Change
from locktender.base.states import TaskState
from locktender.kernel import render
from locktender.kernel.entries import TaskEntry
from locktender.kernel.gates.protocol import SlotGate
from locktender.kernel.lifecycle import Lifecycle
from locktender.kernel.node_state import PLAIN
from locktender.kernel.placement import Worker

MOST_TOLD = 256
"""How many kinds of needs are kept as they are told; any other is made again."""


class GrantWriter:
    """Grants of one term: their tokens are counted within it."""

    def __init__(self, term: int, lives: Lifecycle) -> None:
        self._term = term
        self._lives = lives
        self._journal = lives.journal
        self._tokens = 0
        self._told: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}

    def grant(self, entry: TaskEntry, worker: Worker, now: int, *, offered: bool) -> None:
        """`worker` has it from this commit on: offered, or running in the leader's own process."""
        journal = self._journal
        self._tokens += 1
        token = entry.token = ids.token(self._term, self._tokens)
        entry.worker = worker.id
        entry.scheduled_at = now
        entry.offers += 1
        entry.offered = offered
        data = {"worker": worker.id, "pools": self._pools(entry), "executor": entry.spec.executor}
        change = Change("task", entry.id, TaskState.REQUESTED, TaskState.SCHEDULED, token, data)
        journal.tell(entry.run.seq, change)
        if entry.lane is not None:
            for gate, _ in entry.lane.needs:
                if gate.timed and (bucket := gate.dump()) is not None:
                    journal.commit.buckets.append(bucket)
        if not offered:
            entry.state = TaskState.RUNNING
            entry.attempt += 1
            entry.started_at = now
            change = Change(
                "task", entry.id, TaskState.SCHEDULED, TaskState.RUNNING, token, worker.by
            )
            journal.tell(entry.run.seq, change)
        else:
            entry.state = TaskState.SCHEDULED
            journal.commit.orders.append(Order(worker.id, entry.id, token, "offer"))
            ttl = self._lives.defaults.offer_ttl_us
            self._lives.timers.set(now + ttl, "offer", entry.id, token)
        journal.save(entry)
        self._lives.waits_told.pop(entry.id, None)

    def _pools(self, entry: TaskEntry) -> dict[str, int]:
        pools = self._told.get(entry.pools)
        if pools is None:
            if len(self._told) > MOST_TOLD:
                self._told.clear()
            pools = self._told[entry.pools] = dict(entry.pools)
        return pools


def tell_waits(lives: Lifecycle) -> dict[str, int]:
    """A task found waiting for a pool is told once per gate, with numbers as they are after this commit.

    Returns how many lanes were found at each gate.
    """
    found: dict[str, int] = {}
    told = lives.waits_told
    for lane, head, block in lives.ledger.board.found_blocked:
        gate, name = block.gate, block.name
        found[name] = found.get(name, 0) + 1
        if not isinstance(gate, SlotGate) or not head.in_line or told.get(head.id) == name:
            continue
        told[head.id] = name
        data = {
            "gate": name,
            "used": block.used if gate.timed else gate.used,
            "limit": gate.limit,
            "need": block.need,
            "behind": len(lane) - 1,
        }
        lives.journal.tell_wait(head.run.seq, Change("wait", head.id, "", name, 0, data))
    return found


MOST_SHARED = 256
"""How many maps' shared arguments are kept rendered; any other is rendered again."""


class Calls:
    def __init__(self, lives: Lifecycle) -> None:
        self._lives = lives
        self._shared: dict[tuple[int, int], bytes | None] = {}

    def of(self, entry: TaskEntry) -> bytes:
        value = entry.input or render.NULL
        if entry.idx == PLAIN:
            return value
        return render.merge(entry.spec, self._common(entry), value)

    def _common(self, entry: TaskEntry) -> bytes | None:
        key = (entry.run.seq, entry.node)
        if key not in self._shared:
            if len(self._shared) > MOST_SHARED:
                self._shared.clear()
            scope = self._lives.progress[entry.run.seq].scope
            self._shared[key] = render.shared(entry.spec, scope)
        return self._shared[key]
