"""When to ask for workers, for how many, and which names count no longer: pure decisions.

The stored names are the count. A name counts from before its worker is requested
until the worker has ended: the provisioner lists it as ended, or it is not listed
and did not join in `start_timeout`, or its row has been gone for a few seconds.
While the provisioner lists a worker as alive, its name counts. So a leader that
takes over counts the same workers as the leader before.

Workers that have not joined count as capacity too, so that nothing is requested
twice for the same tasks. Time is the store's, and an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from locktender.base.config import Settings
from locktender.base.durations import spoken
from locktender.base.model import AskedWorker, ProvisionStatus, WorkerRow
from locktender.base.text import counted
from locktender.kernel.demand import Demand, Want
from locktender.kernel.gates.protocol import UNBOUNDED
from locktender.kernel.placement import Requirement
from locktender.provision.protocol import Capacity, Provisioned, ProvisionedState

Needs = tuple[tuple[str, str], ...]
STEPS_NAMED = 3


class Ask(NamedTuple):
    """One request to a provisioner."""

    n: int
    needs: Needs
    reason: str
    requirements: frozenset[Requirement]
    """What the new workers are expected to run."""
    capacity: Capacity


def new_workers(
    wants: Sequence[Want],
    capacities: Mapping[Needs, Capacity],
    coming: Iterable[Capacity],
    room: int,
) -> list[Ask]:
    """The requests, one per set of labels, for at most `room` workers.

    coming        the workers that were requested and have not joined
    capacities    the capacity of a new worker; it fits each of the wants
    """
    workers = [_FutureWorker(capacity) for capacity in coming]
    counts: dict[Needs, int] = {}
    for want in wants:
        left = want.tasks - want.room
        for worker in workers:
            left -= worker.assign(want.requirement, left)
        while left > 0 and room > 0:
            worker = _FutureWorker(capacities[want.needs])
            workers.append(worker)
            left -= worker.assign(want.requirement, left)
            room -= 1
            counts[want.needs] = counts.get(want.needs, 0) + 1
    return [_ask(n, needs, wants, capacities[needs]) for needs, n in counts.items()]


def fits(capacity: Capacity, requirement: Requirement) -> bool:
    """Whether such a worker can run such a task."""
    return (
        capacity.permits.get(requirement.executor, 0) != 0
        and capacity.total != 0
        and all(capacity.labels.get(label) == value for label, value in requirement.needs)
        and (
            capacity.steps is None or capacity.steps.get(requirement.step) == requirement.signature
        )
    )


def requirement_text(requirement: Requirement) -> str:
    labels = "".join(f", {label}={value}" for label, value in requirement.needs)
    return f"step {requirement.step} ({requirement.executor}{labels})"


@dataclass(slots=True)
class _FutureWorker:
    capacity: Capacity
    used: dict[str, int] = field(default_factory=dict[str, int])

    def assign(self, requirement: Requirement, tasks: int) -> int:
        """Assigns up to `tasks` tasks; returns how many."""
        if tasks <= 0 or not fits(self.capacity, requirement):
            return 0
        used = self.used.get(requirement.executor, 0)
        permits = self.capacity.permits.get(requirement.executor, 0)
        free = UNBOUNDED if permits < 0 else permits - used
        if self.capacity.total >= 0:
            free = min(free, self.capacity.total - sum(self.used.values()))
        assigned = max(0, min(tasks, free))
        self.used[requirement.executor] = used + assigned
        return assigned


def _ask(n: int, needs: Needs, wants: Sequence[Want], capacity: Capacity) -> Ask:
    served = [want for want in wants if want.needs == needs]
    tasks = sum(want.tasks - want.room for want in served)
    steps = sorted({want.step for want in served})
    more = len(steps) - STEPS_NAMED
    named = ", ".join(steps[:STEPS_NAMED]) + (f" and {more} more" if more > 0 else "")
    lack = "that lacks" if tasks == 1 else "that lack"
    reason = f"for {counted(tasks, 'task')} of {named} {lack} only a worker"
    return Ask(n, needs, reason, frozenset(want.requirement for want in served), capacity)


ALIVE: tuple[ProvisionedState, ...] = ("starting", "running")
ROW_GONE_US = 5_000_000
"""How long an unlisted worker counts after its row has gone: its process may not have ended yet."""
MAX_COOLDOWN_US = 300_000_000
SET_ASIDE_US = 300_000_000
"""How long nothing is requested for a step that a new worker did not fit."""
ERRORS_NAMED = 3
MAX_GIVEN_UP = 1_000
_decode_capacity = msgspec.json.Decoder(Capacity).decode


@dataclass(frozen=True, slots=True)
class Rules:
    max_workers: int
    """Requested and alive at once; workers started by hand do not count."""
    interval_us: int = 5_000_000
    """Between two requests."""
    cooldown_us: int = 10_000_000
    """After a failure; doubled by each that follows, up to five minutes."""
    start_timeout_us: int = 60_000_000
    """From the request of a worker until it has joined."""

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        return cls(
            settings.max_workers,
            settings.provision_interval_us,
            settings.provision_cooldown_us,
            settings.start_timeout_us,
        )


class WorkersSeen(NamedTuple):
    """What a leader knows at one instant."""

    demand: Demand
    workers: Sequence[WorkerRow]
    listed: Sequence[Provisioned] | None
    """None: the provisioner's list could not be read."""
    stored: Sequence[AskedWorker] = ()
    """Read after the list, so that it says of each ended worker whether it had joined."""


class ProvisionPlan(NamedTuple):
    asks: tuple[Ask, ...] = ()
    release: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    """Stored names that count no longer."""


class Policy:
    def __init__(
        self, rules: Rules, capacity: Callable[[Mapping[str, str]], Capacity | None]
    ) -> None:
        """`capacity`: what a new worker with these labels brings; None: there is no such worker."""
        self.rules: Rules = rules
        self.failures: int = 0
        """In a row; a worker that joins ends it."""
        self.cooling_until: int = 0
        self.requested: int = 0
        """Workers granted so far."""
        self.last_error: str = ""
        self._capacity = capacity
        self._not_before = 0
        self._awaited: dict[str, Ask] = {}
        """Requested by this process; their rows have not been seen."""
        self._row_gone_at: dict[str, int] = {}
        self._released: set[str] = set()
        self._given_up: dict[str, bool] = {}
        """Names that were removed though their workers were never listed → whether one was released since."""
        self._set_aside: dict[Requirement, int] = {}
        """Requirements that a new worker did not fit, and until when nothing is requested for them."""
        self._there = self._coming = self._ending = 0
        self._impossible = ""

    # -- results of requests ---------------------------------------------------------------------

    def asked(self, ask: Ask, names: Collection[str]) -> None:
        """These workers may come."""
        self._awaited.update(dict.fromkeys(names, ask))
        self._coming += len(names)
        self.requested += len(names)

    def failed(self, why: str, now: int) -> None:
        """Nothing is requested until the cool-down has passed."""
        self.failures += 1
        self.last_error = why
        doubled = self.rules.cooldown_us * 2 ** min(self.failures - 1, 32)
        self.cooling_until = now + min(doubled, max(MAX_COOLDOWN_US, self.rules.cooldown_us))

    def list_failed(self, why: str, now: int) -> None:
        """One failure per cool-down, although the list is read every second."""
        if now >= self.cooling_until:
            self.failed(why, now)
        self.last_error = why

    # -- the plan --------------------------------------------------------------------------------

    def plan(self, seen: WorkersSeen, now: int) -> ProvisionPlan:
        rows = {row.provision: row for row in seen.workers if row.provision}
        release, gone = self._reap(seen.stored, rows, seen.listed, now)
        kept = {each.name: each for each in seen.stored if each.name not in gone}
        self._forget(kept)
        self._meet(rows, now)
        coming = [
            each
            for name, each in kept.items()
            if name not in rows
            and name not in self._released
            and (not each.joined_at or name in self._awaited)
        ]
        # A worker that joins after its name was removed still counts, by its row.
        unnamed = sum(row.provision not in kept for row in seen.workers if row.provision)
        late = self._came_late(seen.listed or (), kept.keys() | rows.keys())
        release += [name for name in late if not self._given_up[name]]
        self._given_up.update(dict.fromkeys(late, True))
        heads = len(kept) + unnamed + len(late)
        self._coming = len(coming)
        self._ending = len(self._released - rows.keys()) + len(late)
        self._there = heads - self._coming - self._ending
        room = self.rules.max_workers - heads
        asks = self._asks(seen.demand, room, filter(None, map(_capacity_of, coming)), now)
        return ProvisionPlan(tuple(asks), tuple(release), tuple(sorted(gone)))

    def _reap(
        self,
        stored: Sequence[AskedWorker],
        rows: Mapping[str, WorkerRow],
        listed: Sequence[Provisioned] | None,
        now: int,
    ) -> tuple[list[str], set[str]]:
        """Workers to release, and names that count no longer."""
        release: list[str] = []
        gone: set[str] = set()
        errors: list[str] = []
        states = {each.name: each for each in listed or ()}
        for each in stored if listed is not None else ():
            worker = states.get(each.name)
            alive = worker is not None and worker.state in ALIVE
            if worker is not None and not alive:
                gone.add(each.name)
                errors += self._end_error(each, worker)
            elif each.name in rows:
                self._row_gone_at.pop(each.name, None)
            elif self._is_overdue(each, alive, now):
                if each.name not in self._released:
                    release.append(each.name)
                    errors += self._late_error(each)
                if alive:
                    self._released.add(each.name)
                else:
                    gone.add(each.name)
                    self._given_up[each.name] = False
        for name in list(self._given_up)[:-MAX_GIVEN_UP]:
            del self._given_up[name]
        if errors:
            # Workers that failed together are one failure.
            self.failed("; ".join(errors[:ERRORS_NAMED]), now)
        return release, gone

    def _came_late(self, listed: Sequence[Provisioned], counted: Collection[str]) -> list[str]:
        """Given up while the list did not have them, listed now, and not joined: they must not join any more.

        Only those that this process gave up: a list may have workers of other stores too.
        """
        return [
            each.name
            for each in listed
            if each.state in ALIVE and each.name in self._given_up and each.name not in counted
        ]

    def _is_overdue(self, each: AskedWorker, alive: bool, now: int) -> bool:
        """Of a worker without a row."""
        if not each.joined_at:
            return now >= each.expires_at
        gone_at = self._row_gone_at.setdefault(each.name, now)
        return now - gone_at >= (self.rules.start_timeout_us if alive else ROW_GONE_US)

    def _end_error(self, each: AskedWorker, worker: Provisioned) -> list[str]:
        """A worker that exits well has failed too if it never joined, unless it was released.

        Workers of another process end with it: only those of this process are awaited.
        """
        if each.name in self._released:
            return []
        unseen = not each.joined_at
        if worker.state == "failed" or (
            unseen and each.name in self._awaited and not worker.released
        ):
            before = " before it had joined" if unseen else ""
            detail = " ".join(worker.detail.split()) or "failed"
            return [f"worker {each.name} ended{before}: {detail}"]
        return []

    def _late_error(self, each: AskedWorker) -> list[str]:
        if each.joined_at or each.name not in self._awaited:
            return []
        limit = spoken(self.rules.start_timeout_us)
        return [f"worker {each.name} did not join within start_timeout ({limit})"]

    def _forget(self, kept: Collection[str]) -> None:
        for memory in (self._awaited, self._row_gone_at):
            for name in [name for name in memory if name not in kept]:
                del memory[name]
        self._released.intersection_update(kept)

    def _meet(self, rows: Mapping[str, WorkerRow], now: int) -> None:
        self._set_aside = {
            requirement: until for requirement, until in self._set_aside.items() if until > now
        }
        for name in sorted(self._awaited.keys() & rows.keys()):
            ask, row = self._awaited.pop(name), rows[name]
            self.failures = 0
            if row.draining:
                continue  # It may have older code: that says nothing about the next worker.
            new = Capacity(row.permits, row.total, row.labels, row.steps)
            for requirement in [
                requirement for requirement in self._set_aside if fits(new, requirement)
            ]:
                del self._set_aside[requirement]
            for requirement in sorted(
                requirement for requirement in ask.requirements if not fits(new, requirement)
            ):
                self._set_aside[requirement] = now + SET_ASIDE_US
                self.last_error = (
                    f"worker {name} joined and does not fit {requirement_text(requirement)}"
                )

    def _asks(self, demand: Demand, room: int, coming: Iterable[Capacity], now: int) -> list[Ask]:
        self._impossible = ""
        if now < max(self._not_before, self.cooling_until):
            return []
        lacking = [
            want
            for want in demand.wants
            if want.tasks > want.room and want.requirement not in self._set_aside
        ]
        found = {
            needs: self._capacity(dict(needs)) for needs in sorted({want.needs for want in lacking})
        }
        capacities = {needs: each for needs, each in found.items() if each is not None}
        possible = [
            want
            for want in lacking
            if want.needs in capacities and fits(capacities[want.needs], want.requirement)
        ]
        if impossible := [want for want in lacking if want not in possible]:
            requirement = impossible[-1].requirement
            self._impossible = f"the provisioner has no worker for {requirement_text(requirement)}"
        asks = new_workers(possible, capacities, coming, room)
        if asks:
            self._not_before = now + self.rules.interval_us
        return asks

    # -- what `why` shows ------------------------------------------------------------------------

    def status(self) -> ProvisionStatus:
        cools = bool(self.failures)
        shown = cools or (self._set_aside and not self._impossible)
        return ProvisionStatus(
            self._text(), self.cooling_until if cools else 0, self.last_error if shown else ""
        )

    def _text(self) -> str:
        of = f"of at most {counted(self.rules.max_workers, 'worker')}"
        if self._coming:
            verb = "is on its way" if self._coming == 1 else "are on their way"
            text = f"{self._coming:,} {of} {verb}"
        elif self._there:
            verb = "is" if self._there == 1 else "are"
            text = f"{self._there:,} {of} {verb} there, none is on its way"
        else:
            text = f"none {of} is on its way"
        ending = f"{self._ending:,} released and not gone yet" if self._ending else ""
        return "; ".join(filter(None, (text, ending, self._impossible)))


def _capacity_of(each: AskedWorker) -> Capacity | None:
    """None: another version stored it. Its name still counts."""
    try:
        return _decode_capacity(each.body)
    except msgspec.DecodeError:
        return None
