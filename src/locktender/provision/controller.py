"""Overflow: a leader's line to the provisioner. It never waits for it, and nothing fails with it.

Who runs this: a process that may lead and has a provisioner, one `ProvisionController` for
all of its terms, so that what one term asked for is known to the next. The
leader tells it after every sweep what it sees; asking goes on in a task of its
own, one at a time and each with a limit of time. If the provisioner fails, hangs
or answers what cannot be right, that is logged, told by `why`, the policy cools
down, and tasks stay queued; what such an answer may mean in workers is counted.

Leaders of several processes race for room below `max_workers`. So each name is
stored under the leader's term before its worker is asked for: a leader whose
term is over is refused and asks for nobody, and its successor counts what is
stored. A process that leads no longer still reaps what it started, and says so.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from locktender.base.background import end_tasks
from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import NotLeader, StoreError
from locktender.base.limits import Limits
from locktender.base.model import AskedWorker, LimitRow, Said, WorkerRow
from locktender.kernel.demand import Demand
from locktender.kernel.gate_names import counted
from locktender.provision.calls import ProvisionerCalls, WrongAnswer, odd_states, spoken_error
from locktender.provision.packing import Ask
from locktender.provision.policy import ALIVE, Policy, Rules
from locktender.provision.protocol import Provisioned, Provisioner
from locktender.provision.state import ProvisionPlan, Stored, WorkersSeen
from locktender.store.protocol import Provision, Store

log: logging.Logger = logging.getLogger(__name__)
MIND_SECONDS = 1.0
UNSEEN_SECONDS = 2.5
"""So long after the last sight this process leads no longer: a leader sweeps once a second."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Ask).decode


@dataclass(slots=True)
class _Term:
    """The books of the term that a sight was seen in."""

    store: Store
    number: int
    patience_us: int
    gone: list[str] = field(default_factory=list[str])

    async def note(self, ask: Ask, names: Iterable[str]) -> None:
        body = _encode(ask)
        asked = dict.fromkeys(names, body)
        await self.store.provision(Provision(self.number, asked, self.patience_us))

    async def close(self, said: Said | None) -> None:
        """Takes away the names that count no longer; `said`: what is new."""
        if self.gone or said is not None:
            note = Provision(self.number, gone=self.gone, said=said)
            await self.store.provision(note)


class ProvisionController:
    def __init__(
        self,
        provisioner: Provisioner,
        settings: Settings,
        *,
        policy: Policy | None = None,
        clock: Clock | None = None,
        seed: int = 0,
    ) -> None:
        self.policy: Policy = policy or Policy(Rules.of(settings), provisioner, seed)
        self._provisioner = ProvisionerCalls(provisioner, settings.start_timeout_us / SECOND)
        self._clock = clock or SystemClock()
        self._patience_us = settings.start_timeout_us
        self._turn: asyncio.Task[None] | None = None
        self._minding: asyncio.Task[None] | None = None
        self._store: Store | None = None
        self._seen_at = 0.0
        self._ours: set[str] = set()
        """Granted to this process, and not known to have ended."""
        self._one_at_a_time = asyncio.Lock()
        """A sight must not find stored whom the other is just taking away."""
        self._closed = False
        self._told_error = ""
        self._told_doubled = ""
        self._odd: set[str] = set()
        """Listed last in a state that nobody knows, and told so."""
        self._told: tuple[int, Said] = 0, Said("")
        """What was stored last, and in which term."""
        self._cooling = 0, 0
        """The end of the cool-down, by our own clock and by the store's."""

    def sees(self, demand: Demand, workers: Sequence[WorkerRow], store: Store, term: int) -> None:
        """What the leader of `term` sees after a sweep, all at one instant. Returns at once.

        While the last sight is still being acted on, this one is not needed: the next comes in a second.
        """
        self._store = store
        self._seen_at = asyncio.get_running_loop().time()
        if self._closed or self._busy:
            return
        if self._minding is None:
            self._minding = asyncio.create_task(self._mind(), name="locktender-overflow-mind")
        books = _Term(store, term, self._patience_us)
        self._turn = asyncio.create_task(
            self._act(demand, workers, books), name="locktender-overflow"
        )

    @property
    def _busy(self) -> bool:
        return self._turn is not None and not self._turn.done()

    async def settled(self) -> None:
        """Returns when the last sight has been acted on."""
        if self._turn is not None:
            await asyncio.wait({self._turn})

    def describe(self) -> str:
        """How it stands, for `why` and for the log."""
        return self.policy.describe(self._clock.monotonic())

    async def close(self) -> None:
        """Ask for nothing more; what the provisioner started and ends with this process is ended."""
        if self._closed:
            return
        self._closed = True
        await end_tasks([task for task in (self._turn, self._minding) if task is not None])
        await self._provisioner.close()
        try:
            # Whoever leads next need not wait for those who ended with us.
            await self._part((await self._provisioner.list()).workers)
        except Exception as error:  # noqa: BLE001 — a provisioner is foreign code: it may raise anything
            log.warning("provisioner: %s", spoken_error(error, "the end of workers is not noted"))

    # -- one sight ---------------------------------------------------------------------------------

    async def _act(self, demand: Demand, workers: Sequence[WorkerRow], books: _Term) -> None:
        async with self._one_at_a_time:
            await self._act_alone(demand, workers, books)

    async def _act_alone(self, demand: Demand, workers: Sequence[WorkerRow], books: _Term) -> None:
        try:
            await self._safely_plan(demand, workers, books)
            said = await self._said(books)
            new = said if (books.number, said) != self._told else None
            await books.close(new)
            self._told = books.number, said
        except NotLeader as error:
            log.info("nothing is asked of the provisioner: %s", error)
        except StoreError as error:
            log.warning("nothing is asked of the provisioner: %s", error)
        if self.policy.last_error != self._told_error:
            self._told_error = self.policy.last_error
            log.warning("provisioner: %s; tasks stay queued", self._told_error)
        doubled, self._told_doubled = self._told_doubled, self.policy.standing.doubled
        if self._told_doubled not in ("", doubled):
            log.warning("provisioner: %s; each counts", self._told_doubled)

    async def _safely_plan(
        self, demand: Demand, workers: Sequence[WorkerRow], books: _Term
    ) -> None:
        try:
            await self._plan(demand, workers, books)
        except (NotLeader, StoreError):
            raise
        except Exception as error:  # noqa: BLE001 — whoever is wrong, the next second is another try
            why = spoken_error(error, f"cannot be asked ({type(error).__name__})")
            self.policy.blind(why, self._clock.monotonic())

    async def _plan(self, demand: Demand, workers: Sequence[WorkerRow], books: _Term) -> None:
        policy = self.policy
        try:
            listed, odd = await self._provisioner.list()
        except Exception as error:  # noqa: BLE001 — a provisioner is foreign code: it may raise anything
            why = spoken_error(error, "cannot list its workers")
            policy.blind(why, self._clock.monotonic())
            return
        # Told once of each: it counts meanwhile, so asking may go on.
        news = {name: state for name, state in odd.items() if name not in self._odd}
        self._odd = set(odd)
        # After the list: of whoever has ended by then, the store knows whether it had joined.
        found = await books.store.provisioned()
        now = self._clock.monotonic()
        stored = [_stored(each, now - found.now) for each in found.asked]
        wrong = odd_states(news) if news else ""
        plan = policy.plan(WorkersSeen(demand, workers, listed, stored, books.number, wrong), now)
        books.gone += plan.gone
        self._ours -= _ended(listed)
        await self._carry_out(plan, books)

    async def _carry_out(self, plan: ProvisionPlan, books: _Term) -> None:
        await self._release(plan.give_up)
        waiting = list(plan.asks)
        try:
            while waiting:
                await self._request(waiting[0], books)
                waiting.pop(0)
        finally:
            for ask in waiting:
                self.policy.withdrawn(ask)

    async def _release(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                await self._provisioner.release(name)
            except Exception as error:  # noqa: BLE001 — as above
                log.warning("provisioner: %s", spoken_error(error, f"cannot release {name}"))

    async def _request(self, ask: Ask, books: _Term) -> None:
        names = [f"client-{os.urandom(5).hex()}" for _ in range(ask.n)]
        before = self._clock.monotonic()
        await books.note(ask, names)
        if self._clock.monotonic() - before > self._patience_us // 2:
            # We stood still: by the time they start, another leader may count them no longer.
            books.gone += names
            self.policy.withdrawn(ask)
            return
        try:
            grant = await self._provisioner.request(
                dict(ask.needs), ask.reason, names, self.policy.knows
            )
        except Exception as error:  # noqa: BLE001 — as above
            # Without an answer that can be read they may come all the same, and count until they are given up.
            perhaps = names if isinstance(error, TimeoutError | WrongAnswer) else []
            why = spoken_error(error, f"cannot start {counted(ask.n, 'worker')}")
            self.policy.failed(why, self._clock.monotonic(), ask, perhaps)
            books.gone += [name for name in names if name not in perhaps]
            self._ours.update(perhaps)
            return
        # Who was given the name of another cannot be told from it: the name it was to have counts for it.
        free = [name for name in names if name not in grant.names]
        coming = grant.names + free[: grant.nameless]
        told = ", ".join(coming) or "none"
        log.info("asked for %s %s: %s", counted(ask.n, "worker"), ask.reason, told)
        self.policy.asked(ask, coming, self._clock.monotonic(), grant.surplus, grant.wrong)
        self._ours.update(coming, grant.surplus)
        books.gone += free[grant.nameless :]
        if others := {*coming, *grant.surplus} - set(names):
            # It gives names of its own: they count from here on.
            try:
                await books.note(ask, sorted(others))
            finally:
                await self._release(grant.surplus)

    async def _said(self, books: _Term) -> Said:
        """How it stands, with its instants in the store's time."""
        said = self.policy.said()
        if said.cooling_until and said.cooling_until != self._cooling[0]:
            # Once, and not anew each second: two clocks never agree to the microsecond.
            left = said.cooling_until - self._clock.monotonic()
            self._cooling = said.cooling_until, await books.store.now() + left
        until = self._cooling[1] if said.cooling_until else 0
        return msgspec.structs.replace(said, cooling_until=until)

    # -- while another leads -----------------------------------------------------------------------

    async def _mind(self) -> None:
        """Whoever leads no longer is told nothing more, and its workers end all the same."""
        told = ""
        while True:
            await asyncio.sleep(MIND_SECONDS)
            unseen = asyncio.get_running_loop().time() - self._seen_at
            if self._busy or unseen < UNSEEN_SECONDS or not self._ours:
                continue
            try:
                async with self._one_at_a_time:
                    await self._part((await self._provisioner.list()).workers)
            except StoreError as error:
                log.warning("the end of workers is not noted: %s", error)
            except Exception as error:  # noqa: BLE001 — as above
                words = spoken_error(error, "cannot list its workers")
                if words != told:
                    log.warning("provisioner: %s", words)
                told = words

    async def _part(self, listed: Sequence[Provisioned]) -> None:
        """Says of our own workers that they have ended; it needs no fence, since nobody else can know."""
        gone = sorted(self._ours & _ended(listed))
        if not gone:
            return
        for each in listed:
            if each.name in gone and each.state == "failed":
                log.warning("provisioner: worker %s ended: %s", each.name, each.detail)
        self._ours.difference_update(gone)
        self.policy.ended(gone)
        if self._store is not None:
            await _forget(self._store, gone)


def placed(limits: Limits, rows: Iterable[LimitRow]) -> Limits:
    """`limits` as a leader with a provisioner uses them: `pack` unless somebody has set the placement.

    Packed, the last workers drain, go idle and end themselves. A default only: it is not
    stored, so that it goes with the provisioner.
    """
    given = any(
        row.kind == "engine" and row.name == "placement" and row.effective is not None
        for row in rows
    )
    return limits if given else msgspec.structs.replace(limits, placement="pack")


def _stored(row: AskedWorker, ahead: int) -> Stored:
    """`ahead`: how far our own clock is before the store's."""
    try:
        ask = _decode(row.body)
    except msgspec.DecodeError:
        # Written by another version: it counts as a head all the same.
        ask = None
    return Stored(row.name, row.expires_at + ahead, row.joined_at > 0, ask)


async def _forget(store: Store, names: list[str]) -> None:
    try:
        await store.forget_asked(names)
    except StoreError:
        # Whoever opened it has closed it: workers may take longer to end than the engine does.
        again = store.twin()
        await again.open()
        try:
            await again.forget_asked(names)
        finally:
            await again.close()


def _ended(listed: Sequence[Provisioned]) -> set[str]:
    """Of one name there may be several: it has ended when none of them lives."""
    ended = {each.name for each in listed if each.state not in ALIVE}
    return ended - {each.name for each in listed if each.state in ALIVE}
