"""The candidate: stands for election again and again, and leads whenever the store lets it.

Who runs this: every process that may lead, a server or a worker. They race for
the store's one leader row; whoever has its lease leads, the others stand again
twice a second. A process whose own worker has lost its lease does not stand:
what it still runs may no longer be its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from locktender.base.clock import SECOND
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError, StoreError
from locktender.leader.leader import Leader
from locktender.observe.metrics import Metrics
from locktender.provision.controller import ProvisionController
from locktender.store.protocol import Elect, Store
from locktender.worker.worker import End, LocalWorker

log: logging.Logger = logging.getLogger(__name__)
STAND_AGAIN_SECONDS = 0.5


class Candidate:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        name: Callable[[], str | None],
        local: Callable[[], LocalWorker | None],
        leftover: Callable[[list[End]], None],
        metrics: Metrics,
        overflow: ProvisionController | None = None,
        unstarted: Callable[[list[tuple[int, int]]], None] | None = None,
    ) -> None:
        """`name` is who stands now, None while it must not.

        Once no write of a term can come any more, `leftover` takes the ends it left unwritten, and
        `unstarted` the attempts of this process that it may have written as running without starting them.
        """
        self.coordinator: Leader | None = None
        self._store = store
        self._settings = settings
        self._name = name
        self._local = local
        self._leftover = leftover
        self._metrics = metrics
        self._overflow = overflow
        self._unstarted = unstarted
        self._unwritten: list[End] = []
        self._unsure: list[tuple[int, int]] = []
        self._hearers: list[Callable[[list[int]], None]] = []

    def on_runs_ended(self, hear: Callable[[list[int]], None]) -> None:
        """`hear` is told of runs that ended while this process leads."""
        self._hearers.append(hear)

    @property
    def owner(self) -> str | None:
        """The name it leads under; None while it must not."""
        name = self._name()
        return None if name is None else f"{name}-leads"

    async def run(self) -> None:
        """Stands and leads until it is cancelled; then it gives its lease back."""
        while True:
            owner = self.owner
            term = 0 if owner is None else await self._elected(owner)
            if owner is not None and term:
                await self._lead(owner, term)
            else:
                await asyncio.sleep(STAND_AGAIN_SECONDS)

    async def watch(self) -> None:
        """Foreign commits wake the leader here."""
        mark = -1
        while True:
            try:
                mark = await self._store.wait(self._settings.poll_us, mark)
            except StoreError as error:
                log.warning("cannot wait for commits, polling: %s", error)
                await asyncio.sleep(self._settings.poll_us / SECOND)
            if self.coordinator is not None:
                self.coordinator.look()

    async def _elected(self, owner: str) -> int:
        try:
            led = await self._store.elect(Elect(owner, self._settings.leader_lease_us))
        except StoreError as error:
            log.warning("cannot stand for election: %s", error)
            return 0
        # A later term has begun, whoever leads in it: what was on its way is written, or never will be.
        unwritten, self._unwritten = self._unwritten, []
        self._leftover(unwritten)
        unsure, self._unsure = self._unsure, []
        if unsure and self._unstarted is not None:
            self._unstarted(unsure)
        return led.term

    async def _lead(self, owner: str, term: int) -> None:
        log.info("term %s: this process leads", term)
        coordinator = Leader(
            self._store,
            owner,
            self._settings,
            self._local(),
            self._tell,
            self._metrics,
            self._overflow,
        )
        self.coordinator = coordinator
        failed = False
        try:
            await coordinator.lead(term)
        except asyncio.CancelledError:
            self.coordinator = None
            with suppress(LocktenderError):
                await self._store.resign(owner, term)
            raise
        except StoreError as error:
            log.warning("term %s ended: %s", term, error)
            failed = True
        except Exception:
            log.exception("term %s ended by an error of our own; standing again", term)
            failed = True
        self.coordinator = None
        # Not earlier: up to here the worker hands the ends of its attempts to this coordinator.
        self._unwritten += coordinator.unwritten()
        self._unsure += coordinator.unstarted()
        # Whoever stands next, maybe this process under a new name, need not wait for a lease nobody keeps.
        with suppress(LocktenderError):
            await self._store.resign(owner, term)
        if failed:
            await asyncio.sleep(STAND_AGAIN_SECONDS)

    def _tell(self, runs: list[int]) -> None:
        for hear in self._hearers:
            hear(runs)
