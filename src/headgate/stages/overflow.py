"""Overflow: a leader's line to the provisioner. It never waits for it, and nothing fails with it.

Who runs this: a process that may lead and has a provisioner, one `Overflow` for
all of its terms, so that what one term asked for is known to the next. The
leader tells it after every sweep what it sees; asking goes on in a task of its
own, one at a time and each with a limit of time. If the provisioner fails or
hangs, that is logged, the policy cools down, and tasks stay queued.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

import msgspec

from headgate.base.clock import SECOND, Clock, SystemClock
from headgate.base.config import Settings
from headgate.base.limits import Limits
from headgate.base.model import LimitRow, WorkerRow
from headgate.kernel.demand import Demand
from headgate.provision.policy import Ask, Plan, Policy, Rules, Sight
from headgate.provision.protocol import Provisioned, Provisioner
from headgate.stages.chores import end_tasks

log: logging.Logger = logging.getLogger(__name__)


class Overflow:
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
        self._provisioner = provisioner
        self._clock = clock or SystemClock()
        self._patience = settings.start_timeout_us / SECOND
        self._turn: asyncio.Task[None] | None = None
        self._closed = False
        self._told_error = ""

    def sees(self, demand: Demand, workers: Sequence[WorkerRow]) -> None:
        """What the leader sees after a sweep, both at one instant. Returns at once.

        While the last sight is still being acted on, this one is not needed: the next comes in a second.
        """
        if self._closed or (self._turn is not None and not self._turn.done()):
            return
        self._turn = asyncio.create_task(self._act(demand, workers), name="headgate-overflow")

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
        if self._turn is not None:
            await end_tasks([self._turn])
        await self._provisioner.close()

    # -- one sight ---------------------------------------------------------------------------------

    async def _act(self, demand: Demand, workers: Sequence[WorkerRow]) -> None:
        policy = self.policy
        try:
            listed = await self._list()
            plan = policy.plan(Sight(demand, workers, listed), self._clock.monotonic())
            await self._carry_out(plan)
        except Exception as error:  # noqa: BLE001 — a provisioner is foreign code: it may raise anything
            policy.failed(_said(error, "cannot list its workers"), self._clock.monotonic())
        if policy.last_error != self._told_error:
            self._told_error = policy.last_error
            log.warning("provisioner: %s; tasks stay queued", self._told_error)

    async def _list(self) -> list[Provisioned]:
        async with asyncio.timeout(self._patience):
            return await self._provisioner.list()

    async def _carry_out(self, plan: Plan) -> None:
        for name in plan.give_up:
            try:
                async with asyncio.timeout(self._patience):
                    await self._provisioner.release(name)
            except Exception as error:  # noqa: BLE001 — as above
                log.warning("provisioner: %s", _said(error, f"cannot release {name}"))
        for ask in plan.asks:
            await self._request(ask)

    async def _request(self, ask: Ask) -> None:
        try:
            async with asyncio.timeout(self._patience):
                names = await self._provisioner.request(ask.n, dict(ask.needs), ask.reason)
        except Exception as error:  # noqa: BLE001 — as above
            why = _said(error, f"cannot start {ask.n} workers")
            self.policy.failed(why, self._clock.monotonic(), ask)
        else:
            log.info("asked for %s workers %s: %s", ask.n, ask.reason, ", ".join(names) or "none")
            self.policy.asked(ask, names, self._clock.monotonic())


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


def _said(error: Exception, what: str) -> str:
    if isinstance(error, TimeoutError):
        return f"{what}: it did not answer in time"
    return f"{what}: {error or type(error).__name__}"
