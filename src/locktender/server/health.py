"""`/health`: whether this process can do its work, in one small answer.

It is *degraded*, with status 503, when its store does not answer or its worker
has no lease: a supervisor may restart it. That there is no leader is reported
too, but does not make this process unhealthy.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from locktender.base import version
from locktender.base.clock import SECOND
from locktender.base.errors import StoreError
from locktender.base.model import BlockingSession, HeldUp
from locktender.client.views import instant
from locktender.engine import Engine
from locktender.server.fresh import Fresh

STORE_SECONDS = 1.0
"""How long the store may take to answer."""
KEPT_SECONDS = 0.2


class WorkerHealth(msgspec.Struct, frozen=True):
    id: str
    lease: Literal["held", "lost"]
    draining: bool
    in_flight: int


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok", "degraded"]
    problems: tuple[str, ...]
    role: Literal["server", "worker"]
    leads: bool
    term: int | None
    """While it leads."""
    leader: str | None
    """The leader, by the store; None: there is none, or the store did not answer."""
    store: Literal["ok", "unreachable"]
    worker: WorkerHealth | None
    version: str
    since: datetime
    history_lag_seconds: float = 0.0
    """How far audit, checkpoints and pruning lag behind an open transaction. Runs do not wait for it."""
    held_up_by: tuple[BlockingSession, ...] = ()
    """Sessions of the database server that delay the store."""


class Doctor:
    """Looks at one engine."""

    def __init__(self, engine: Engine, since: int, held_up: Fresh[HeldUp]) -> None:
        self._engine = engine
        self._held_up = held_up
        self._since = since
        self._leader = Fresh(engine.store.leader, KEPT_SECONDS)

    async def look(self) -> tuple[Health, bool]:
        """What it finds, and whether the process is fit to go on."""
        problems: list[str] = []
        term = self._engine.metrics.term
        leader: str | None = None
        reachable = True
        held_up = HeldUp()
        try:
            leader = await self._leader.get(STORE_SECONDS)
            if term and self._engine.election is not None:
                # What the store said is a moment old: the election may have been since.
                leader = self._engine.election.owner
            if leader is None:
                problems.append("there is no leader")
            held_up = await self._held_up.get(STORE_SECONDS)
            problems += [each.text() for each in held_up.sessions if each.holds == "lock"]
        except TimeoutError:
            reachable = False
            problems.append(f"the store does not answer within {STORE_SECONDS:g} s")
        except StoreError:
            reachable = False
            problems.append("the store cannot be read; the log says why")
        worker = self._worker()
        lost = worker is not None and worker.lease == "lost"
        if lost:
            problems.append("the worker has lost its lease")
        found = Health(
            status="degraded" if problems else "ok",
            problems=tuple(problems),
            role="server" if worker is None else "worker",
            leads=term > 0,
            term=term or None,
            leader=leader,
            store="ok" if reachable else "unreachable",
            worker=worker,
            version=version.installed(),
            since=instant(self._since),
            history_lag_seconds=held_up.lag_us / SECOND,
            held_up_by=held_up.sessions,
        )
        return found, reachable and not lost

    async def close(self) -> None:
        await self._leader.close()

    def _worker(self) -> WorkerHealth | None:
        if self._engine.membership is None:
            return None
        worker = self._engine.worker
        lease = "lost" if self._engine.lost else "held"
        return WorkerHealth(worker.id, lease, worker.draining, worker.in_flight)
