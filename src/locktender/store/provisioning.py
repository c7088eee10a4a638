"""Workers that were asked for: known before they are there, to every leader.

Who writes: the leader that asks, before it asks; and a worker, which marks its
name as joined with its first beat. What they could race for, and why it is safe:

    two leaders   the one whose term is over stores nothing and so may ask for nobody (`provision`
                  is fenced). Its successor reads what it stored before, and counts it.
    a name        is made once and never again. To take away the name of a worker that has ended is
                  right whoever does it, so `forget_asked` needs no fence: a process that leads no
                  longer says of its own children what it alone knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from locktender.base.model import AskedWorker, Said


@dataclass(frozen=True, slots=True)
class Provision:
    term: int
    asked: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Name → what it is asked for with. A name that is stored already stays as it is."""
    start_timeout_us: int = 0
    """How long those may take until they have joined."""
    gone: list[str] = field(default_factory=list[str])
    """Names of workers that ended, or that nobody waits for any longer."""
    said: Said | None = None
    """None: as it was."""


@dataclass(frozen=True, slots=True)
class ProvisionState:
    now: int
    asked: list[AskedWorker]
    """By name."""
    said: Said | None
    """What the leader of this term said last; None: it has no provisioner, or has not said anything yet."""


class Provisioning(Protocol):
    """The verbs about workers that are asked for: a part of `Store`."""

    async def provision(self, provision: Provision) -> None: ...
    async def forget_asked(self, names: list[str]) -> None:
        """These workers have ended."""
        ...

    async def provisioned(self) -> ProvisionState: ...
