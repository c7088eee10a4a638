"""Names of requested workers, stored before each request so that every leader counts the same workers.

The leader writes a name before it requests the worker; the worker marks the name
as joined with its first beat. Two races, and why they are safe:

    two leaders   `provision` is fenced: a leader whose term is over stores no name and so requests
                  no worker. Its successor reads the names stored before, and counts them.
    a name        is used once. Removing the name of a worker that ended is right in any process,
                  so `forget_asked` has no fence: a former leader reports the end of its own workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from locktender.base.model import AskedWorker, Said


@dataclass(frozen=True, slots=True)
class Provision:
    term: int
    asked: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Name → capacity of the worker, as JSON. A name that is stored already stays as it is."""
    start_timeout_us: int = 0
    """How long the workers `asked` for may take until they have joined."""
    gone: list[str] = field(default_factory=list[str])
    """Names that count no longer."""
    said: Said | None = None
    """None: unchanged."""


@dataclass(frozen=True, slots=True)
class ProvisionState:
    now: int
    asked: list[AskedWorker]
    """Sorted by name."""
    said: Said | None
    """What the leader of this term stored last; None: it has no provisioner, or has stored nothing yet."""


class Provisioning(Protocol):
    """The verbs about requested workers: a part of `Store`."""

    async def provision(self, provision: Provision) -> None: ...
    async def forget_asked(self, names: list[str]) -> None:
        """These workers have ended."""
        ...

    async def provisioned(self) -> ProvisionState: ...
