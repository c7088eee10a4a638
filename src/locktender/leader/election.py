"""Election: this process tries to become the leader, and leads whenever the store lets it.

Who runs this: every process that may lead, a server or a worker. They race for the one leader row of the
store. The process that has its lease leads; the others try again twice a second. A process whose own worker
has lost its lease does not try: what it still runs may belong to another worker. One whose terms fail for data
that no run is to blame for tries less and less often, and says so in the history.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from locktender.base.background import repeat_forever
from locktender.base.changes import End
from locktender.base.clock import SECOND, SystemClock
from locktender.base.commits import Commit, RunEnd, RunEvents
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError
from locktender.base.events import NO_RUN, Change
from locktender.leader.commit_pipeline import CommitRefused, lost_cycle
from locktender.leader.leader import Leader
from locktender.leader.own_worker import OwnWorker
from locktender.observe.metrics import Metrics
from locktender.provision.controller import ProvisionController
from locktender.store.lease_thread import Lease, LeaseThread
from locktender.store.protocol import ChangeNotice, Elect, Store
from locktender.store.readable import is_fault, reason_of

log: logging.Logger = logging.getLogger(__name__)
ELECT_EVERY_SECONDS = 0.5
MAX_PAUSE_SECONDS = 60.0
"""Between two terms that fail."""
CALM_SECONDS = 10.0
"""A term that lasts longer has not failed at once: the next pause is short again."""
_LAST_CYCLE = 1 << 40
"""Behind every cycle of a term: that of the event by which it fails."""


class OwnMembership(Protocol):
    """The membership of this process's worker, as the election sees it."""

    @property
    def worker(self) -> OwnWorker: ...
    @property
    def has_lease(self) -> bool: ...
    def led_by(self, leader: Leader | None) -> None:
        """From here on this process leads, or does not any more."""
        ...

    def take_back(self, ends: list[End], unstarted: list[tuple[int, int]]) -> None:
        """What a term of this process left open, once no write of that term can come any more.

        `ends` were not written. `unstarted` may be written as running, and were not started.
        """
        ...


class LeaderLease(Lease):
    """The lease of one term. Nothing is given up before its end: a commit of a later term fences this one."""

    def __init__(self, leader: Leader, term: int, settings: Settings) -> None:
        lease_us, renew_us = settings.leader_lease_us, settings.leader_renew_us
        super().__init__("the leader lease", lease_us, renew_us, margin_us=None)
        self._leader = leader
        self._term = term

    async def renew(self, store: Store) -> str | None:
        if self._leader.blocked_longer_than(self.lease_us):
            return "the loop of the leader is blocked"
        written = self._leader.last_written
        led = await store.elect(Elect(self._leader.owner, self.lease_us, self._term))
        if led.term != self._term:
            return "the store says that it is over"
        return str(lost_cycle(written)) if led.cycle < written else None

    def lost(self, why: str) -> None:
        # The next commit would find out the same; this only saves the wait for it.
        log.warning("term %s ends: %s", self._term, why)
        self._leader.close()


def _pause(failures: int) -> float:
    if failures <= 0:
        return 0.0
    return min(MAX_PAUSE_SECONDS, ELECT_EVERY_SECONDS * 2 ** min(failures - 1, 16))


class Election:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        name: str,
        membership: OwnMembership | None,
        metrics: Metrics,
        leases: LeaseThread,
        overflow: ProvisionController | None = None,
    ) -> None:
        """`name`: what a process without a worker leads as."""
        self.leader: Leader | None = None
        self._store = store
        self._settings = settings
        self._name = name
        self._membership = membership
        self._metrics = metrics
        self._leases = leases
        self._overflow = overflow
        self._clock = SystemClock()
        self._seen = 0, self._clock.monotonic()
        """When the leader's lease ends, as it was last found, and since when (boot-time clock)."""
        self._failed = 0
        """Terms in a row that failed, or ended to isolate a run."""
        self._unwritten: list[End] = []
        self._unstarted: list[tuple[int, int]] = []
        self._on_runs_ended: list[Callable[[list[RunEnd]], None]] = []

    def on_runs_ended(self, callback: Callable[[list[RunEnd]], None]) -> None:
        """`callback` gets the runs that end while this process leads, when that is written."""
        self._on_runs_ended.append(callback)

    @property
    def owner(self) -> str | None:
        """The name that it leads under; None while it must not lead."""
        membership = self._membership
        if membership is None:
            return f"{self._name}-leads"
        return f"{membership.worker.id}-leads" if membership.has_lease else None

    async def run(self) -> None:
        """Tries and leads until it is cancelled; then it gives its lease back."""
        await repeat_forever(self._try_to_lead, "lead", ELECT_EVERY_SECONDS)

    async def _try_to_lead(self) -> None:
        owner = self.owner
        pause_seconds = ELECT_EVERY_SECONDS
        try:
            term = 0 if owner is None else await self._elected(owner)
            if owner is not None and term:
                pause_seconds = await self._lead(owner, term)
        except Exception as error:
            if not is_fault(error):
                raise
            pause_seconds = self._failure(error)
        await asyncio.sleep(pause_seconds)

    async def watch(self) -> None:
        """Commits of other processes wake the leader here."""
        await repeat_forever(self._watch, "wait for commits", self._settings.poll_us / SECOND)

    async def _watch(self) -> None:
        told = ChangeNotice(look=True)
        try:
            told = await self._store.wait_for_changes(self._settings.poll_us)
        finally:
            # Also if the wait failed: then the leader polls.
            if self.leader is not None:
                self.leader.notice(told)

    async def _elected(self, owner: str) -> int:
        lease_us = self._settings.leader_lease_us
        ends_at, since_us = self._seen
        passed = ends_at if self._clock.monotonic() - since_us >= lease_us else 0
        led = await self._store.elect(Elect(owner, lease_us, passed=passed))
        if led.expires_at != ends_at:
            self._seen = led.expires_at, self._clock.monotonic()
        # A later term has begun, in whichever process: what was being written is written, or never will be.
        unwritten, self._unwritten = self._unwritten, []
        unstarted, self._unstarted = self._unstarted, []
        if self._membership is not None:
            self._membership.take_back(unwritten, unstarted)
        return led.term

    async def _lead(self, owner: str, term: int) -> float:
        """Lead until the term is over; the pause before the next, in seconds."""
        log.info("term %s: this process leads", term)
        membership = self._membership
        leader = Leader(
            self._store,
            owner,
            self._settings,
            None if membership is None else membership.worker,
            self._publish_ended,
            self._metrics,
            self._overflow,
        )
        lease = LeaderLease(leader, term, self._settings)
        self._set_leader(leader)
        pause_seconds = 0.0
        calm = asyncio.get_running_loop().call_later(CALM_SECONDS, self._calm)
        try:
            await self._leases.add(lease, held=True)
            await leader.lead(term)
        except Exception as error:
            if not is_fault(error):
                raise
            pause_seconds = self._failure(error)
            await self._record_failed_term(owner, term, error, pause_seconds)
        finally:
            calm.cancel()
            # Not earlier: up to here the worker hands the ends of its attempts to this leader.
            self._set_leader(None)
            self._unwritten += leader.unwritten()
            self._unstarted += leader.unstarted()
            # Before it resigns: a renewal after that would take the lease again.
            await self._leases.remove(lease)
            with suppress(LocktenderError):
                await self._store.resign(owner, term)
        return pause_seconds

    def _calm(self) -> None:
        """A term has lasted for a while: it has not failed at once."""
        self._failed = self._metrics.failed_terms = 0

    def _failure(self, error: Exception) -> float:
        """A term failed for what no new term can mend; for how long to pause, in seconds."""
        self._failed += 1
        self._metrics.failed_terms = self._failed
        seconds = _pause(self._failed)
        # The trace once: the next failures are the same.
        trace = error if self._failed == 1 else None
        log.error("%s; the next try comes in %g s", self._text(error), seconds, exc_info=trace)
        return seconds

    def _text(self, error: Exception) -> str:
        why = str(error) if isinstance(error, CommitRefused) else reason_of(error)
        many = "1 term" if self._failed == 1 else f"{self._failed} terms in a row"
        return f"nothing is decided, because {many} failed: {why}"

    async def _record_failed_term(
        self, owner: str, term: int, error: Exception, pause_seconds: float
    ) -> None:
        """In the history, so that `why` says it in every process."""
        try:
            again_at = await self._store.now() + round(pause_seconds * SECOND)
            data = {"reason": self._text(error), "terms": self._failed, "again_at": again_at}
            told = RunEvents(NO_RUN, [Change("term", 0, "", "failed", 0, data)])
            await self._store.commit(Commit(term, _LAST_CYCLE, f"leader:{owner}", events=[told]))
        except LocktenderError as refused:
            log.warning("failed to record that a term failed: %s", refused)

    def _set_leader(self, leader: Leader | None) -> None:
        self.leader = leader
        if self._membership is not None:
            self._membership.led_by(leader)

    def _publish_ended(self, ends: list[RunEnd]) -> None:
        for callback in self._on_runs_ended:
            callback(ends)
