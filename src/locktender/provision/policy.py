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
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from locktender.base.config import Settings
from locktender.base.durations import spoken
from locktender.base.model import Said, WorkerRow
from locktender.kernel.demand import Demand
from locktender.kernel.placement import Requirement
from locktender.provision.calls import WrongAnswer, capacity_of, named
from locktender.provision.packing import Ask, Bag, Draft, Needs, fits, spoken_skill
from locktender.provision.protocol import Capacity, ProvisionedState, Provisioner
from locktender.provision.state import KnownWorker, ProvisionPlan, Standing, Stored, WorkersSeen

PARTING_US = 5_000_000
"""How long one that has left and is listed nowhere still counts: its process may not be gone yet."""
ALIVE: tuple[ProvisionedState, ...] = ("starting", "running")
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
        self._known: dict[str, KnownWorker] = {}
        self._on_the_way: list[Ask] = []
        """Planned, and not answered for yet."""
        self._not_before = 0
        self._set_aside: dict[Requirement, int] = {}
        """Skills for which a worker came and did not fit, and until when nobody asks for one again."""
        self._met: dict[Needs, Capacity] = {}
        """What the worker that joined last had, by the needs it was asked for with."""
        self.standing: Standing = Standing()
        self._term = 0

    # -- facts -------------------------------------------------------------------------------------

    def asked(
        self,
        ask: Ask,
        names: Iterable[str],
        now: int,
        surplus: Collection[str] = (),
        wrong: str = "",
    ) -> None:
        """The provisioner has answered `ask`.

        surplus    granted beyond what was asked for, and told to end: they count until they have
        wrong      what cannot be right about the answer: a failure like any other
        """
        self._answered(ask)
        granted = list(names)
        self._expect(ask, (*granted, *surplus), now)
        for name in surplus:
            self._known[name].surplus = True
        self.requested += len(granted) + len(surplus)
        if wrong or not granted:
            self.failed(wrong or "the provisioner granted no worker", now)

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

    def blind(self, why: str, now: int) -> None:
        """It cannot be seen who is there, so nothing is asked for.

        That is one failure per cool-down, however often it is looked: else a few seconds without a
        list would cost the longest of them.
        """
        if not self.failures or now >= self.cooling_until:
            self.failed(why, now)
        self.last_error = why
        self.standing.blind = True

    def withdrawn(self, ask: Ask) -> None:
        """It was not asked for after all."""
        self._answered(ask)

    def ended(self, names: Iterable[str]) -> None:
        """They ended while another process led, and that was told then."""
        for name in names:
            self._known.pop(name, None)

    def knows(self, name: str) -> bool:
        """Whether a worker of that name was asked for, listed or seen before."""
        return name in self._known

    def _expect(self, ask: Ask, names: Iterable[str], now: int) -> None:
        for name in names:
            known = self._known.setdefault(name, KnownWorker(now + self.rules.start_timeout_us))
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

    def plan(self, sight: WorkersSeen, now: int) -> ProvisionPlan:
        """What to do about what is seen."""
        self.standing.blind = False
        rows: defaultdict[str, list[WorkerRow]] = defaultdict(list)
        for row in sight.workers:
            if row.provision:
                rows[row.provision].append(row)
        # By number, and not by name: a provisioner may give one name to several.
        rowed = Counter({name: len(several) for name, several in rows.items()})
        living = Counter(each.name for each in sight.listed if each.state in ALIVE)
        present, alive = set(rowed), set(living)
        self._return(sight, present | alive)
        self._recall(sight.stored)
        self._meet(rows, alive, now)
        self._part(sight, present, alive, now)
        give_up = self._overdue(present, now)
        heads = self._heads(rowed, living)
        asks = self._asks(sight.demand, self.rules.max_workers - heads, now)
        if asks:
            self._not_before = now + self.rules.interval_us
            self._on_the_way += asks
            self.last_request = "; ".join(f"{ask.n} {ask.reason}" for ask in asks)
        stored = {each.name for each in sight.stored}
        gone = sorted(stored - self._known.keys() - present - alive)
        return ProvisionPlan(tuple(asks), tuple(give_up), tuple(gone))

    def _return(self, sight: WorkersSeen, here: set[str]) -> None:
        """Forget whose name was taken away while another process led: it came and went, and that leader knew."""
        if sight.term != self._term:
            self._term = sight.term
            self.ended(self._known.keys() - here - {each.name for each in sight.stored})

    def _recall(self, stored: Sequence[Stored]) -> None:
        """Who was asked for, by whomever: they are on their way for this leader too."""
        for each in stored:
            known = self._known.get(each.name)
            if known is None:
                known = self._known[each.name] = KnownWorker(each.until, each.ask)
            if each.joined and not known.came:
                known.came = True
                if known.ours:
                    self.failures = 0

    def _meet(self, rows: Mapping[str, Sequence[WorkerRow]], alive: set[str], now: int) -> None:
        for name in alive - rows.keys() - self._known.keys():
            # The provisioner lists it and the store does not: it may still join.
            self._known[name] = KnownWorker(now + self.rules.start_timeout_us)
        for name in sorted(rows.keys() & self._known.keys()):
            known = self._known[name]
            if known.joined:
                continue
            known.joined = True
            self.failures = 0
            # One that drains already may have the code of before: it says nothing about the next.
            # Nor does one that another process started: it may run other code than ours would.
            [row, *_] = rows[name]
            if known.ask is not None and known.ours and not row.draining:
                self._judge(name, known.ask, row, now)
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

    def _part(self, sight: WorkersSeen, present: set[str], alive: set[str], now: int) -> None:
        """Forget who has ended. Any number that failed at once are one failure.

        Who ended well has failed too if it never joined, unless it was let go, or was another process's:
        those end with whoever started them. If its name is no longer stored, nobody knows whether it joined.
        """
        words = [sight.wrong] if sight.wrong else []
        stored = {each.name for each in sight.stored}
        for each in sight.listed:
            if each.name in alive or each.name not in self._known:
                continue
            known = self._known.pop(each.name)
            unseen = each.name in stored and not (known.joined or known.came)
            idle = each.state == "ended" and unseen and known.ours and not each.released
            if not known.told_to_end and (each.state == "failed" or idle):
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

    def _heads(self, rows: Counter[str], alive: Counter[str]) -> int:
        """How many there are or may be: of each name the most that its rows, the list or the books tell."""
        expected = Counter(name for name, known in self._known.items() if not known.given_up)
        everybody = rows | alive | expected
        heads = everybody.total() + sum(ask.n for ask in self._on_the_way)
        told = {name for name, known in self._known.items() if known.told_to_end}
        lingering = sum(everybody[name] for name in told - rows.keys())
        doubled = sorted(name for name, n in (rows | alive).items() if n > 1)
        self.standing.there = heads - self._waiting() - lingering
        self.standing.lingering = lingering
        self.standing.doubled = (
            f"more than one worker is called {named(doubled)}" if doubled else ""
        )
        return heads

    def _asks(self, demand: Demand, room: int, now: int) -> list[Ask]:
        self.standing.impossible = ""
        self._set_aside = {skill: until for skill, until in self._set_aside.items() if until > now}
        if not demand.total or now < max(self._not_before, self.cooling_until):
            return []
        try:
            brings = self._brings(demand)
        except WrongAnswer as error:
            self.failed(str(error), now)
            return []
        bags = self._coming()
        drafts: dict[Needs, Draft] = {}
        for want in demand.wants:
            skill, left = want.skill, want.tasks - want.room
            # Before any bag is opened: what nobody comes for must not take the permits of what can run.
            if left <= 0 or skill in self._set_aside:
                continue
            capacity = brings[want.needs]
            if capacity is None or not fits(capacity, skill):
                self.standing.impossible = (
                    f"the provisioner has no worker for {spoken_skill(skill)}"
                )
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

    def _brings(self, demand: Demand) -> dict[Needs, Capacity | None]:
        """What a worker would bring, by what it is needed with."""
        wanted = {want.needs for want in demand.wants if want.tasks > want.room}
        return {needs: capacity_of(self._provisioner, dict(needs)) for needs in sorted(wanted)}

    def _proven(self, skill: Requirement) -> bool:
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
            if known.ask is not None and not known.joined and not known.told_to_end
        ]

    def _coming(self) -> list[Bag]:
        planned = [ask for ask in self._on_the_way for _ in range(ask.n)]
        return [Bag(ask.capacity) for ask in (*self._expected(), *planned)]

    # -- words -------------------------------------------------------------------------------------

    def said(self) -> Said:
        """How it stands, for whoever asks why a task still waits for a worker. Instants are this process's."""
        text = self.standing.words(self.rules.max_workers, self._waiting())
        cools = bool(self.failures) and bool(self.cooling_until)
        after = cools or (self._set_aside and not self.standing.impossible)
        return Said(text, self.cooling_until if cools else 0, self.last_error if after else "")

    def describe(self, now: int) -> str:
        return self.said().words(now)

    def _waiting(self) -> int:
        awaited = sum(known.awaited for known in self._known.values())
        return awaited + sum(ask.n for ask in self._on_the_way)
