"""What a provisioner is: an object that starts workers when the leader asks.

The leader calls it at most once a second (`provision/controller.py`). It may fail or
hang: no task fails with it, and the leader does not wait. It must not block the event loop.

A worker is known by the *name* it was requested with. The leader makes the name and
stores it before the request; the worker has it in its row (`WorkerRow.provision`, from
the setting `provision`: LOCKTENDER_PROVISION). A name is used once: a second request
for a name means the same worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

ProvisionedState = Literal["starting", "running", "ended", "failed"]


class Provisioned(msgspec.Struct, frozen=True):
    """One requested worker, as its provisioner lists it."""

    name: str
    state: ProvisionedState
    """*ended*: it exited well, or was released."""
    since: int = 0
    """When it was requested, by the clock of the provisioner's process."""
    detail: str = ""
    """Where it runs; for an ended worker why it ended, such as its last error."""
    released: bool = False
    """It was released: then it is no failure if it never joined."""


class Capacity(msgspec.Struct, frozen=True):
    """What one more worker would bring."""

    permits: dict[str, int]
    """Per executor; −1 is unlimited, 0 none."""
    total: int = -1
    """Over all executors; −1 is unlimited."""
    labels: dict[str, str] = {}
    steps: dict[str, str] | None = None
    """Step → signature. None: not known before the worker has joined."""


class Provisioner(Protocol):
    """Starts and ends workers when `max_workers` allows more; see docs/provisioning.md."""

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        """What a worker with these labels would bring; None: it cannot start one. Answers from memory."""
        ...

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> list[str]:
        """Start `n` workers with these labels, called `names`. Returns the names that were granted.

        It need not wait until they run. An error means that none of them will come; if some
        will, their names are returned. After a timeout the leader assumes that all may come.
        """
        ...

    async def list(self) -> list[Provisioned]:
        """All requested workers that live, and those that ended lately."""
        ...

    async def release(self, name: str) -> None:
        """Let this worker drain and end. An unknown name changes nothing."""
        ...

    async def close(self) -> None:
        """Nothing more will be requested; workers that end with this process end now."""
        ...
