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

Every name is stored before its worker is asked for, and a sight holds what is
stored. So a new leader finds who is on the way for the leader before it, counts
them like its own, and `max_workers` holds over a take-over too. A worker of
which nobody says that it has ended is counted a while beyond its row: it leaves
the store a moment before its process is gone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headgate.base.config import Settings
from headgate.base.durations import spoken
from headgate.base.model import WorkerRow
from headgate.base.provisioning import Said
from headgate.kernel.demand import Demand
from headgate.kernel.naming import counted
from headgate.kernel.place import Skill
from headgate.provision.dealing import Ask, Bag, Draft, Needs, fits, spoken_skill
from headgate.provision.protocol import Capacity, Provisioned, Provisioner

PARTING_US = 5_000_000
"""How long one that has left and is listed nowhere still counts: its process may not be gone yet."""
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


class Stored(NamedTuple):
    """A worker that was asked for, by this leader or by another, as the store has it."""

    name: str
    until: int
    """If it has not joined by then, nobody waits for it any longer."""
    joined: bool = False
    """It has been there, and may be gone again."""
    ask: Ask | None = None
    """What it was asked for with; None: nobody here can read it."""


class Sight(NamedTuple):
    """What a leader sees at one instant; the stored names are read after the list."""

    demand: Demand
    workers: Sequence[WorkerRow]
    listed: Sequence[Provisioned]
    stored: Sequence[Stored] = ()


class Plan(NamedTuple):
    asks: tuple[Ask, ...] = ()
    give_up: tuple[str, ...] = ()
    """To be released: they have not joined in time."""
    gone: tuple[str, ...] = ()
    """Stored names that count no longer."""


@dataclass(slots=True)
class Known:
    """A worker that was asked for."""

    until: int
    """Then it is given up, unless it is there."""
    ask: Ask | None = None
    """None: it was found listed, and nobody here knows who asked for it."""
    ours: bool = False
    """This process asked for it, and knows how it ends."""
    joined: bool = False
    """It was seen."""
    came: bool = False
    """It has joined by the store's word, seen or not."""
    given_up: bool = False
    left_at: int | None = None
    """Since when nobody has seen or listed it; None: it is there, or has not come yet."""

    @property
    def awaited(self) -> bool:
        return not (self.joined or self.came or self.given_up)


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
        self._there = 0
        """At the last look: those that count and are not on their way."""

    # -- facts -------------------------------------------------------------------------------------

    def asked(self, ask: Ask, names: Iterable[str], now: int) -> None:
        """The provisioner has answered `ask`."""
        self._answered(ask)
        granted = list(names)
        self._expect(ask, granted, now)
        self.requested += len(granted)
        if not granted:
            self.failed("the provisioner granted no worker", now)

    def failed(
        self, why: str, now: int, ask: Ask | None = None, perhaps: Iterable[str] = ()
    ) -> None:
        """Asking failed, or what was asked for did: nothing is asked for until it has cooled down.

        `perhaps`: of `ask`, who may come nevertheless; they count until they are given up.
        """
        if ask is not None:
            self._answered(ask)
            self._expect(ask, perhaps, now)
        self.failures += 1
        self.last_error = why
        self.cooling_until = now + self._cooldown()

    def withdrawn(self, ask: Ask) -> None:
        """It was not asked for after all."""
        self._answered(ask)

    def _expect(self, ask: Ask, names: Iterable[str], now: int) -> None:
        for name in names:
            known = self._known.setdefault(name, Known(now + self.rules.start_timeout_us))
            known.ask, known.ours = ask, True

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
        self._recall(sight.stored)
        self._meet(rows, alive, now)
        self._part(sight, present, alive, now)
        give_up = self._overdue(present, now)
        heads = self._heads(present, alive)
        self._there = heads - self._waiting()
        asks = self._asks(sight.demand, self.rules.max_workers - heads, now)
        if asks:
            self._not_before = now + self.rules.interval_us
            self._on_the_way += asks
            self.last_request = "; ".join(f"{ask.n} {ask.reason}" for ask in asks)
        stored = {each.name for each in sight.stored}
        gone = sorted(stored - self._known.keys() - present - alive)
        return Plan(tuple(asks), tuple(give_up), tuple(gone))

    def _recall(self, stored: Sequence[Stored]) -> None:
        """Who was asked for, by whomever: they are on their way for this leader too."""
        for each in stored:
            known = self._known.get(each.name)
            if known is None:
                known = self._known[each.name] = Known(each.until, each.ask)
            if each.joined and not known.came:
                known.came = True
                if known.ours:
                    self.failures = 0

    def _meet(self, rows: Mapping[str, WorkerRow], alive: set[str], now: int) -> None:
        for name in alive - rows.keys() - self._known.keys():
            # The provisioner lists it and the store does not: it may still join.
            self._known[name] = Known(now + self.rules.start_timeout_us)
        for name in sorted(rows.keys() & self._known.keys()):
            known = self._known[name]
            if known.joined:
                continue
            known.joined = True
            self.failures = 0
            # One that drains already may have the code of before: it says nothing about the next.
            # Nor does one that another process started: it may run other code than ours would.
            if known.ask is not None and known.ours and not rows[name].draining:
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
            self.last_error = f"worker {name} came and does not fit {spoken_skill(skill)}"
            self._set_aside[skill] = now + LONGEST_COOLDOWN_US

    def _part(self, sight: Sight, present: set[str], alive: set[str], now: int) -> None:
        """Forget who has ended. Any number that failed at once are one failure.

        Who ended well has failed too if it never joined, unless it was let go, or was another process's:
        those end with whoever started them.
        """
        words: list[str] = []
        for each in sight.listed:
            if each.name in alive or each.name not in self._known:
                continue
            known = self._known.pop(each.name)
            unseen = not (known.joined or known.came)
            idle = each.state == "ended" and unseen and known.ours and not each.released
            if not known.given_up and (each.state == "failed" or idle):
                before = " before it had joined" if unseen else ""
                words.append(f"worker {each.name} ended{before}: {each.detail or 'it failed'}")
        gone: list[str] = []
        for name, known in self._known.items():
            if name in present or name in alive:
                known.left_at = None
            elif known.given_up:
                gone.append(name)
            elif known.joined or known.came:
                known.left_at = now if known.left_at is None else known.left_at
                if now - known.left_at >= PARTING_US:
                    gone.append(name)
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
                known.until = now + limit
            elif not known.given_up and now >= known.until:
                never += [name] if known.awaited and known.ours else []
                known.given_up = True
                late.append(name)
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
        drafts: dict[Needs, Draft] = {}
        for want in demand.wants:
            skill, left = want.skill, want.tasks - want.room
            # Before any bag is opened: what nobody comes for must not take the permits of what can run.
            if left <= 0 or skill in self._set_aside:
                continue
            capacity = self._provisioner.capacity(dict(want.needs))
            if capacity is None or not fits(capacity, skill):
                self._impossible = f"the provisioner has no worker for {spoken_skill(skill)}"
                continue
            if capacity.steps is None and not self._proven(skill):
                if want.needs in drafts:
                    drafts[want.needs].wants[skill] = want
                elif room > 0 and not self._awaited(want.needs):
                    drafts[want.needs] = Draft(capacity)
                    drafts[want.needs].serve(want)
                    bags.append(Bag(capacity))
                    room -= 1
                continue
            for bag in bags:
                left -= bag.take(skill, left)
            while left > 0 and room > 0:
                draft = drafts.setdefault(want.needs, Draft(capacity))
                draft.serve(want)
                bag = Bag(capacity)
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

    def _coming(self) -> list[Bag]:
        planned = [ask for ask in self._on_the_way for _ in range(ask.n)]
        return [Bag(ask.capacity) for ask in (*self._expected(), *planned)]

    # -- words -------------------------------------------------------------------------------------

    def said(self) -> Said:
        """How it stands, for whoever asks why a task still waits for a worker. Instants are this process's."""
        text = self._standing()
        if self._impossible:
            text = f"{text}; {self._impossible}"
        cools = bool(self.failures) and bool(self.cooling_until)
        after = cools or (self._set_aside and not self._impossible)
        return Said(text, self.cooling_until if cools else 0, self.last_error if after else "")

    def describe(self, now: int) -> str:
        return self.said().words(now)

    def _standing(self) -> str:
        of = f"of at most {counted(self.rules.max_workers, 'worker')}"
        if waiting := self._waiting():
            return f"{waiting:,} {of} {'is on its way' if waiting == 1 else 'are on their way'}"
        if not self._there:
            return f"none {of} is on its way"
        are = "is" if self._there == 1 else "are"
        return f"{self._there:,} {of} {are} there, none is on its way"

    def _waiting(self) -> int:
        awaited = sum(known.awaited for known in self._known.values())
        return awaited + sum(ask.n for ask in self._on_the_way)
