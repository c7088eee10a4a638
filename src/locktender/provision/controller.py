"""Starts workers through a provisioner when tasks lack only a worker.

A process that may lead has one `ProvisionController` for all of its terms. The leader
calls `observe` after each sweep; one task at a time then does these steps:

list     Read the provisioner's workers. The names of those that ended are removed.
count    Read the stored names: they are the count, also those of an earlier leader.
plan     The policy decides how many more are needed, within `max_workers`, interval and cool-down.
store    Store a new name per worker, under the leader's term, before the request. A leader
         whose term is over is refused and requests nothing; its successor counts the names.
request  Call the provisioner. Names that it does not grant are removed. After a timeout or a
         wrong answer the workers may still come, so their names count until `start_timeout`.

A call that raises, times out or returns a wrong value is logged, shown by `why` and starts
a cool-down; tasks stay queued. A process that leads no longer still removes the names of
its own workers that ended: only it can know.
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
from locktender.base.model import LimitRow, ProvisionStatus, WorkerRow
from locktender.base.text import counted
from locktender.kernel.demand import Demand
from locktender.provision.policy import ALIVE, Ask, Policy, Rules, WorkersSeen
from locktender.provision.protocol import (
    Provisioned,
    Provisioner,
    ProvisionerCalls,
    WrongAnswer,
    error_text,
)
from locktender.store.protocol import Provision, Store

log: logging.Logger = logging.getLogger(__name__)
REAP_SECONDS = 1.0
NOT_LEADING_SECONDS = 2.5
"""So long after the last `observe` this process leads no longer: a leader sweeps once a second."""
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Term:
    """The leader's term in which a step runs; `gone` collects names to remove at its end."""

    store: Store
    number: int
    gone: list[str] = field(default_factory=list[str])


class ProvisionController:
    def __init__(
        self, provisioner: Provisioner, settings: Settings, *, clock: Clock | None = None
    ) -> None:
        self._calls = ProvisionerCalls(provisioner, settings.start_timeout_us / SECOND)
        self.policy: Policy = Policy(Rules.of(settings), self._calls.capacity)
        self._clock = clock or SystemClock()
        self._start_timeout_us = settings.start_timeout_us
        self._step: asyncio.Task[None] | None = None
        self._reaper: asyncio.Task[None] | None = None
        self._store: Store | None = None
        self._observed_at = 0.0
        self.started: set[str] = set()
        """Requested by this process, and not known to have ended."""
        self._lock = asyncio.Lock()
        """A step must not read names that the reaper is removing."""
        self._closed = False
        self._logged_error = ""
        self._stored_status: tuple[int, ProvisionStatus] = 0, ProvisionStatus("")
        """By term."""
        self._store_ahead_us = 0
        """The store's time less this process's monotonic time."""

    def observe(
        self, demand: Demand, workers: Sequence[WorkerRow], store: Store, term: int
    ) -> None:
        """What the leader of `term` knows after a sweep. Returns at once; ignored while a step still runs."""
        self._store = store
        self._observed_at = asyncio.get_running_loop().time()
        if self._closed or self._busy:
            return
        if self._reaper is None:
            self._reaper = asyncio.create_task(self._reap(), name="locktender-provision-reap")
        self._step = asyncio.create_task(
            self._run_step(demand, workers, _Term(store, term)), name="locktender-provision"
        )

    @property
    def _busy(self) -> bool:
        return self._step is not None and not self._step.done()

    async def settled(self) -> None:
        """Returns when the last step has ended."""
        if self._step is not None:
            await asyncio.wait({self._step})

    def describe(self) -> str:
        return self.policy.status().words(self._now())

    async def close(self) -> None:
        """Requests nothing more; the provisioner ends the workers that end with this process."""
        if self._closed:
            return
        self._closed = True
        await end_tasks([task for task in (self._step, self._reaper) if task is not None])
        await self._calls.close()
        try:
            await self._remove_ended()
        except Exception as error:  # noqa: BLE001 — a provisioner may raise anything
            log.warning("provisioner: %s", error_text(error, "failed to remove ended workers"))

    def _now(self) -> int:
        """The store's time."""
        return self._clock.monotonic() + self._store_ahead_us

    # -- one step --------------------------------------------------------------------------------

    async def _run_step(self, demand: Demand, workers: Sequence[WorkerRow], term: _Term) -> None:
        async with self._lock:
            try:
                await self._plan_safely(demand, workers, term)
                await self._store_result(term)
            except NotLeader as error:
                log.info("no workers are requested: %s", error)
            except StoreError as error:
                log.warning("failed to request workers: %s", error)
            except Exception:
                # The next sweep of the leader begins another step.
                log.exception("failed to request workers: internal error")
            self._log_error(self.policy.last_error)

    async def _plan_safely(self, demand: Demand, workers: Sequence[WorkerRow], term: _Term) -> None:
        try:
            await self._plan(demand, workers, term)
        except (NotLeader, StoreError):
            raise
        except Exception as error:  # noqa: BLE001 — a provisioner may raise anything, in capacity() too
            self.policy.failed(error_text(error, "failed to plan workers"), self._now())

    async def _plan(self, demand: Demand, workers: Sequence[WorkerRow], term: _Term) -> None:
        listed: list[Provisioned] | None = None
        failure = ""
        try:
            listed = await self._calls.list()
        except Exception as error:  # noqa: BLE001 — as above
            failure = error_text(error, "failed to list workers")
        found = await term.store.provisioned()
        self._store_ahead_us = found.now - self._clock.monotonic()
        if listed is None:
            self.policy.list_failed(failure, found.now)
        plan = self.policy.plan(WorkersSeen(demand, workers, listed, found.asked), found.now)
        term.gone += plan.gone
        self.started -= _ended(listed or ())
        for name in plan.release:
            await self._release(name)
        for ask in plan.asks:
            await self._request(ask, term)

    async def _release(self, name: str) -> None:
        try:
            await self._calls.release(name)
        except Exception as error:  # noqa: BLE001 — as above
            log.warning("provisioner: %s", error_text(error, f"failed to release worker {name}"))

    async def _request(self, ask: Ask, term: _Term) -> None:
        names = [f"worker-{os.urandom(5).hex()}" for _ in range(ask.n)]
        before = self._clock.monotonic()
        asked = dict.fromkeys(names, _encode(ask.capacity))
        await term.store.provision(Provision(term.number, asked, self._start_timeout_us))
        if self._clock.monotonic() - before > self._start_timeout_us // 2:
            # This process was paused: another leader may soon stop counting these names.
            term.gone += names
            return
        self.started.update(names)
        granted, failure = await self._granted(ask, names)
        refused = [name for name in names if name not in granted]
        self.policy.asked(ask, granted)
        term.gone += refused
        self.started.difference_update(refused)
        if failure:
            self.policy.failed(failure, self._now())
        else:
            workers = counted(len(granted), "worker")
            log.info("requested %s %s: %s", workers, ask.reason, ", ".join(granted))

    async def _granted(self, ask: Ask, names: list[str]) -> tuple[list[str], str]:
        """The workers that may come, and the error if the request failed."""
        what = f"failed to start {counted(ask.n, 'worker')}"
        try:
            granted = await self._calls.request(dict(ask.needs), ask.reason, names)
        except TimeoutError as error:
            return names, error_text(error, what)
        except WrongAnswer as error:
            may_come = names if error.may_come is None else error.may_come
            return [name for name in names if name in may_come], error_text(error, what)
        except Exception as error:  # noqa: BLE001 — as above
            return [], error_text(error, what)
        return granted, "" if granted else f"{what}: the provisioner granted none"

    async def _store_result(self, term: _Term) -> None:
        """Removes names, and stores what `why` shows when it has changed."""
        said = self.policy.status()
        changed = (term.number, said) != self._stored_status
        if term.gone or changed:
            await term.store.provision(
                Provision(term.number, gone=term.gone, status=said if changed else None)
            )
            self._stored_status = term.number, said

    def _log_error(self, text: str) -> None:
        if text != self._logged_error:
            self._logged_error = text
            log.warning("provisioner: %s; tasks stay queued", text)

    # -- while another process leads -------------------------------------------------------------

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(REAP_SECONDS)
            since = asyncio.get_running_loop().time() - self._observed_at
            if self._busy or since < NOT_LEADING_SECONDS or not self.started:
                continue
            try:
                async with self._lock:
                    await self._remove_ended()
            except Exception as error:  # noqa: BLE001 — as above
                self._log_error(error_text(error, "failed to remove ended workers"))

    async def _remove_ended(self) -> None:
        """Needs no term: no other process knows that these workers ended."""
        if not self.started:
            return
        listed = await self._calls.list()
        ended = self.started & _ended(listed)
        if not ended:
            return
        for each in listed:
            if each.name in ended and each.state == "failed":
                log.warning("provisioner: worker %s failed: %s", each.name, each.detail)
        if self._store is not None:
            await self._store.forget_asked(sorted(ended))
        self.started -= ended


def placed(limits: Limits, rows: Iterable[LimitRow]) -> Limits:
    """The limits of a leader with a provisioner: placement is `pack` unless it was set.

    Packed, the last workers get no more work and end themselves. It is not stored, so that
    it ends with the provisioner.
    """
    given = any(
        row.kind == "engine" and row.name == "placement" and row.effective is not None
        for row in rows
    )
    return limits if given else msgspec.structs.replace(limits, placement="pack")


def _ended(listed: Sequence[Provisioned]) -> set[str]:
    return {each.name for each in listed if each.state not in ALIVE}
