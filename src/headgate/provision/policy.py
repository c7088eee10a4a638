"""When to ask for workers, for how many, and when to give up on one: a pure state machine.

A *sight* goes in once a second: the demand, the workers that have joined, what
the provisioner lists. A *plan* comes out: what to ask for now, whom to release.
Whoever carries it out tells how it went (`asked`, `failed`). Time is an
argument; jitter comes from a seed.

Workers are asked for only where tasks lack nothing but a worker and neither
those present nor those on their way can take them. Whoever is on the way is
counted twice over, and that is what keeps the promise: as capacity, so that
nothing is asked for again, and as a head, so that `max_workers` holds.

Where nobody knows beforehand which steps a new worker will have, one is started
as a probe for all that waits with the same needs. What it has when it joins is
taken for what the next will have; for what it does not fit, nobody is asked for
in a while.

What this cannot see: workers that a leader in another process asked for count
from when they have joined, or where the provisioner lists them for everybody.
At a take-over there may be more than `max_workers`, by those that were on
their way, until they end themselves for want of work.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.base.config import Settings
from headgate.base.durations import spoken
from headgate.base.model import WorkerRow
from headgate.kernel.demand import Demand, Want
from headgate.kernel.gates import UNBOUNDED
from headgate.kernel.place import Skill
from headgate.provision.protocol import Capacity, Provisioned, Provisioner

Needs = tuple[tuple[str, str], ...]
LONGEST_COOLDOWN_US = 300_000_000
MOST_REMEMBERED = 1_000
"""Skills set aside, and needs that somebody came for."""


@dataclass(frozen=True, slots=True)
class Rules:
    max_workers: int
    """Asked for and alive at once; workers that somebody started by hand do not count."""
    interval_us: int = 5_000_000
    """Between two requests."""
    cooldown_us: int = 10_000_000
    """After a failure; doubled by each that follows, up to five minutes."""
    start_timeout_us: int = 60_000_000
    """How long a worker may take from its request until it has joined."""

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        return cls(
            settings.max_workers,
            settings.provision_interval_us,
            settings.provision_cooldown_us,
            settings.start_timeout_us,
        )


class Sight(NamedTuple):
    """What a leader sees at one instant."""

    demand: Demand
    workers: Sequence[WorkerRow]
    listed: Sequence[Provisioned]


class Ask(NamedTuple):
    n: int
    needs: Needs
    reason: str
    skills: frozenset[Skill]
    """What the new workers are to serve."""
    capacity: Capacity


class Plan(NamedTuple):
    asks: tuple[Ask, ...] = ()
    give_up: tuple[str, ...] = ()
    """To be released: they have not joined in time."""


@dataclass(slots=True)
class Known:
    """A worker that was asked for."""

    since: int
    ask: Ask | None = None
    """None: it was found listed, and somebody else asked for it."""
    joined: bool = False
    given_up: bool = False


@dataclass(slots=True)
class _Bag:
    """Permits of one worker that is on its way, while tasks are dealt out to it."""

    capacity: Capacity
    used: dict[str, int] = field(default_factory=dict[str, int])

    def take(self, skill: Skill, tasks: int) -> int:
        if tasks <= 0 or not fits(self.capacity, skill):
            return 0
        permits = self.capacity.permits.get(skill.executor, 0)
        room = UNBOUNDED if permits < 0 else permits - self.used.get(skill.executor, 0)
        if self.capacity.total >= 0:
            room = min(room, self.capacity.total - sum(self.used.values()))
        taken = max(0, min(tasks, room))
        self.used[skill.executor] = self.used.get(skill.executor, 0) + taken
        return taken


def fits(capacity: Capacity, skill: Skill) -> bool:
    """Whether such a worker could run such a task at all."""
    return (
        capacity.permits.get(skill.executor, 0) != 0
        and capacity.total != 0
        and all(capacity.labels.get(label) == value for label, value in skill.needs)
        and (capacity.steps is None or capacity.steps.get(skill.step) == skill.signature)
    )


class Policy:
    def __init__(self, rules: Rules, provisioner: Provisioner, seed: int = 0) -> None:
        self.rules: Rules = rules
        self.failures: int = 0
        """One after the other; a worker that joins ends the row."""
        self.cooling_until: int = 0
        """Nothing is asked for before."""
        self.requested: int = 0
        """Workers asked for so far."""
        self.last_request: str = ""
        self.last_error: str = ""
        self._provisioner = provisioner
        self._seed = seed
        self._known: dict[str, Known] = {}
        self._on_the_way: list[Ask] = []
        """Planned, and not answered for yet."""
        self._not_before = 0
        self._set_aside: dict[Skill, int] = {}
        """Skills for which a worker came and did not fit, and until when nobody asks for one again."""
        self._met: dict[Needs, Capacity] = {}
        """What the worker that joined last had, by the needs it was asked for with."""
        self._impossible: str = ""

    # -- facts -------------------------------------------------------------------------------------

    def asked(self, ask: Ask, names: Iterable[str], now: int) -> None:
        """The provisioner has answered `ask`."""
        self._answered(ask)
        granted = list(names)
        for name in granted:
            known = self._known.setdefault(name, Known(now))
            known.ask = ask
        self.requested += len(granted)
        if not granted:
            self.failed("the provisioner granted no worker", now)

    def failed(self, why: str, now: int, ask: Ask | None = None) -> None:
        """Asking failed, or what was asked for did: nothing is asked for until it has cooled down."""
        if ask is not None:
            self._answered(ask)
        self.failures += 1
        self.last_error = why
        self.cooling_until = now + self._cooldown()

    def _answered(self, ask: Ask) -> None:
        if ask in self._on_the_way:
            self._on_the_way.remove(ask)

    def _cooldown(self) -> int:
        """Doubled with each failure; jitter takes off up to half, so that leaders do not come back together."""
        rules = self.rules
        most = max(LONGEST_COOLDOWN_US, rules.cooldown_us)
        full = min(most, rules.cooldown_us * 2 ** min(self.failures - 1, 32))
        draw = zlib.crc32(f"{self._seed}:{self.failures}".encode()) / 0xFFFFFFFF
        return full - int(full * 0.5 * draw)

    # -- the plan ----------------------------------------------------------------------------------

    def plan(self, sight: Sight, now: int) -> Plan:
        """What to do about what is seen."""
        rows = {row.provision: row for row in sight.workers if row.provision}
        present = set(rows)
        alive = {each.name for each in sight.listed if each.state in ("starting", "running")}
        self._meet(rows, alive, now)
        self._part(sight, present, alive, now)
        give_up = self._overdue(present, now)
        heads = self._heads(present, alive)
        asks = self._asks(sight.demand, self.rules.max_workers - heads, now)
        if asks:
            self._not_before = now + self.rules.interval_us
            self._on_the_way += asks
            self.last_request = "; ".join(f"{ask.n} {ask.reason}" for ask in asks)
        return Plan(tuple(asks), tuple(give_up))

    def _meet(self, rows: Mapping[str, WorkerRow], alive: set[str], now: int) -> None:
        for name in alive - rows.keys() - self._known.keys():
            # Asked for by a request whose answer was lost: it may still join.
            self._known[name] = Known(now)
        for name in sorted(rows.keys() & self._known.keys()):
            known = self._known[name]
            if known.joined:
                continue
            known.joined = True
            self.failures = 0
            # One that drains already may have the code of before: it says nothing about the next.
            if known.ask is not None and not rows[name].draining:
                self._judge(name, known.ask, rows[name], now)
        for memory in (self._set_aside, self._met):
            if len(memory) > MOST_REMEMBERED:
                memory.clear()

    def _judge(self, name: str, ask: Ask, row: WorkerRow, now: int) -> None:
        """By its own row: demand leaves out workers that drain or are gone, whether they fit or not."""
        met = Capacity(row.permits, row.total, row.labels, row.steps)
        self._met[ask.needs] = met
        for skill in [skill for skill in self._set_aside if fits(met, skill)]:
            del self._set_aside[skill]
        for skill in sorted(skill for skill in ask.skills if not fits(met, skill)):
            self.last_error = f"worker {name} came and does not fit {_spoken(skill)}"
            self._set_aside[skill] = now + LONGEST_COOLDOWN_US

    def _part(self, sight: Sight, present: set[str], alive: set[str], now: int) -> None:
        """Forget who has ended. Any number that failed at once are one failure.

        Who ended well without having been seen is none: it did its work between two looks, or was let go.
        """
        words: list[str] = []
        for each in sight.listed:
            if each.name in alive or each.name not in self._known:
                continue
            known = self._known.pop(each.name)
            if each.state == "failed" and not known.given_up:
                before = "" if known.joined else " before it had joined"
                words.append(f"worker {each.name} ended{before}: {each.detail or 'it failed'}")
        gone = [
            name
            for name, known in self._known.items()
            if (known.joined or known.given_up) and name not in present and name not in alive
        ]
        for name in gone:
            del self._known[name]
        if words:
            self.failed("; ".join(words[:3]), now)

    def _overdue(self, present: set[str], now: int) -> list[str]:
        """Who should have joined by now, or has left and does not end."""
        limit = self.rules.start_timeout_us
        late: list[str] = []
        never: list[str] = []
        for name, known in self._known.items():
            if name in present:
                known.since = now
            elif not known.given_up and now - known.since >= limit:
                known.given_up = True
                late.append(name)
                if not known.joined:
                    never.append(name)
        if never:
            names = ", ".join(sorted(never))
            self.failed(f"{names} did not join within start_timeout ({spoken(limit)})", now)
        return late

    def _heads(self, present: set[str], alive: set[str]) -> int:
        expected = {name for name, known in self._known.items() if not known.given_up}
        return len(present | alive | expected) + sum(ask.n for ask in self._on_the_way)

    def _asks(self, demand: Demand, room: int, now: int) -> list[Ask]:
        self._impossible = ""
        self._set_aside = {skill: until for skill, until in self._set_aside.items() if until > now}
        if not demand.total or now < max(self._not_before, self.cooling_until):
            return []
        bags = self._coming()
        drafts: dict[Needs, _Draft] = {}
        for want in demand.wants:
            skill, left = want.skill, want.tasks - want.room
            # Before any bag is opened: what nobody comes for must not take the permits of what can run.
            if left <= 0 or skill in self._set_aside:
                continue
            capacity = self._provisioner.capacity(dict(want.needs))
            if capacity is None or not fits(capacity, skill):
                self._impossible = f"the provisioner has no worker for {_spoken(skill)}"
                continue
            if capacity.steps is None and not self._proven(skill):
                if want.needs in drafts:
                    drafts[want.needs].wants[skill] = want
                elif room > 0 and not self._awaited(want.needs):
                    drafts[want.needs] = _Draft(capacity)
                    drafts[want.needs].serve(want)
                    bags.append(_Bag(capacity))
                    room -= 1
                continue
            for bag in bags:
                left -= bag.take(skill, left)
            while left > 0 and room > 0:
                draft = drafts.setdefault(want.needs, _Draft(capacity))
                draft.serve(want)
                bag = _Bag(capacity)
                bags.append(bag)
                left -= bag.take(skill, left)
                room -= 1
        return [draft.ask(needs) for needs, draft in drafts.items()]

    def _proven(self, skill: Skill) -> bool:
        """Whether a worker that was asked for with these needs has come and fits."""
        met = self._met.get(skill.needs)
        return met is not None and fits(met, skill)

    def _awaited(self, needs: Needs) -> bool:
        """Whether somebody is on the way who will show what such workers have."""
        return any(ask.needs == needs for ask in (*self._expected(), *self._on_the_way))

    def _expected(self) -> list[Ask]:
        """What each that was granted and has not joined was asked for with."""
        return [
            known.ask
            for known in self._known.values()
            if known.ask is not None and not known.joined and not known.given_up
        ]

    def _coming(self) -> list[_Bag]:
        planned = [ask for ask in self._on_the_way for _ in range(ask.n)]
        return [_Bag(ask.capacity) for ask in (*self._expected(), *planned)]

    # -- words -------------------------------------------------------------------------------------

    def describe(self, now: int) -> str:
        """How it stands, for whoever asks why a task still waits for a worker."""
        waiting = sum(
            1 for known in self._known.values() if not known.joined and not known.given_up
        )
        waiting += sum(ask.n for ask in self._on_the_way)
        words = [f"{waiting} of at most {self.rules.max_workers} workers are on their way"]
        if self.cooling_until > now:
            left = spoken(self.cooling_until - now)
            words.append(f"nothing is asked for in the next {left} after: {self.last_error}")
        elif self._impossible:
            words.append(self._impossible)
        elif self.last_error and (self.failures or self._set_aside):
            words.append(f"the last one failed: {self.last_error}")
        return "; ".join(words)


@dataclass(slots=True)
class _Draft:
    """A request being put together."""

    capacity: Capacity
    n: int = 0
    wants: dict[Skill, Want] = field(default_factory=dict[Skill, Want])

    def serve(self, want: Want) -> None:
        """One more worker, for `want`."""
        self.n += 1
        self.wants[want.skill] = want

    def ask(self, needs: Needs) -> Ask:
        tasks = sum(want.tasks - want.room for want in self.wants.values())
        steps = sorted({want.step for want in self.wants.values()})
        named = ", ".join(steps[:3]) + (f" and {len(steps) - 3} more" if len(steps) > 3 else "")
        reason = f"for {tasks} tasks of {named} that lack only a worker"
        return Ask(self.n, needs, reason, frozenset(self.wants), self.capacity)


def _spoken(skill: Skill) -> str:
    labels = "".join(f", {label}={value}" for label, value in skill.needs)
    return f"step {skill.step} ({skill.executor}{labels})"
