"""Which workers are alive, stalled or dead, and what follows for those that are stalled.

A worker renews its lease; each renewal changes `lease_until` of its row. The leader measures how long the last
renewal is ago on its own steady clock, because the store's clock can be set. So a new leader gives every worker
one whole lease, and a jump of the store's clock, ahead or back, ends no lease.

    alive       the lease has not passed
    stalled     it has passed, and the process is known to live: a lock file on SQLite, a session lock on
                PostgreSQL. It gets no offers, keeps its slots, and nothing is charged
    dead        the process is known to be dead; or the lease has passed and nothing proves its life;
                or it was stalled for longer than `stall_grace`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from locktender.base.clock import SECOND
from locktender.base.durations import spoken
from locktender.base.events import NO_RUN, Change
from locktender.base.model import DeadWorker, WorkerLife, WorkerRow
from locktender.kernel.scheduler import Scheduler

LEASE_PASSED = "lease expired"
PROCESS_DIED = "process died"
PROOF_PAUSE_US = 3 * SECOND
"""How long a proof that was there may be missing: a worker that wakes up connects again before it renews."""


class _Seen(msgspec.Struct):
    lease_until: int
    ends_us: int
    """When its lease passes, unless it is renewed before (steady clock)."""
    proved_us: int | None = None
    """When its life was last proved."""
    late: bool = False
    """This leader found it with a lease that had passed, by the store's time."""


class Judged(msgspec.Struct, frozen=True):
    stalled: dict[str, int] = {}
    """Worker → for how long, in microseconds."""
    dead: list[DeadWorker] = []


class LeaseWatch:
    """One leader's view of the workers' leases."""

    def __init__(self, stall_grace_us: int) -> None:
        self._stall_grace_us = stall_grace_us
        self._seen: dict[str, _Seen] = {}

    def judge(
        self, lives: Iterable[WorkerLife], now: int, steady_us: int, read_us: int | None = None
    ) -> Judged:
        """`lives` were asked for at `steady_us` and answered by `read_us`, by a clock that never jumps.

        `now`: the store's time. By it a new leader sees which leases have passed; none is declared dead by it.
        """
        before, self._seen = self._seen, {}
        judged = Judged()
        for life in lives:
            seen = before.get(life.worker)
            if seen is None or seen.lease_until != life.lease_until:
                # Renewed at some moment up to the answer: its lease begins no earlier than that.
                late = seen is None and life.lease_until < now
                seen = _Seen(life.lease_until, (read_us or steady_us) + life.lease_us, late=late)
            self._seen[life.worker] = seen
            if life.proof == "held":
                seen.proved_us = steady_us
            if (reason := self._dead(life, seen, steady_us)) is not None:
                judged.dead.append(DeadWorker(life.worker, life.lease_until, reason))
            elif seen.late or steady_us >= seen.ends_us:
                judged.stalled[life.worker] = max(0, steady_us - seen.ends_us)
        return judged

    def _dead(self, life: WorkerLife, seen: _Seen, steady_us: int) -> str | None:
        if life.proof == "gone":
            return PROCESS_DIED
        if not life.lease_until:
            return LEASE_PASSED
        if steady_us < seen.ends_us:
            return None
        if life.proof == "none":
            pause_us = 0 if seen.proved_us is None else PROOF_PAUSE_US
            lost = steady_us >= max(seen.ends_us, (seen.proved_us or 0) + pause_us)
            return LEASE_PASSED if lost else None
        if steady_us - seen.ends_us < self._stall_grace_us:
            return None
        return f"stalled for longer than {spoken(self._stall_grace_us)}"


def set_stalled(scheduler: Scheduler, stalled: Mapping[str, int], now: int) -> None:
    """Workers that are stalled get no offers; one that renews its lease again does. Both are recorded."""
    for worker in scheduler.ledger.workers.by_id.values():
        stalls = worker.id in stalled
        if stalls == (worker.stalled_since > 0):
            continue
        worker.stalled_since = now - stalled[worker.id] if stalls else 0
        data: dict[str, object] = {"worker": worker.id}
        after = "stalled" if stalls else "resumed"
        scheduler.commit_builder.record(NO_RUN, Change("worker", 0, "", after, 0, data))
        if not stalls:
            scheduler.ledger.put_worker(worker.row, local=worker.local)


def stalled_by_rows(rows: Iterable[WorkerRow], now: int) -> dict[str, int]:
    """The same as far as rows show it, for processes that do not lead."""
    return {row.id: now - row.lease_until for row in rows if 0 < row.lease_until < now}
