"""What a provisioner is: somebody who can start workers when asked.

Who calls this: the leader, once a second at most, through `provision/controller.py`.
A provisioner may fail or hang: no task fails with it and the leader does not
wait for it. It must not block the event loop.

A worker that was asked for is known by the *name* it was asked for with. The
leader makes the name and stores it before it asks, so that a later leader, in
any process, knows who may be on the way. The worker carries the name in its row
(`WorkerRow.provision`, from the setting `provision`: LOCKTENDER_PROVISION), so
that any leader can count it. A name is never used twice: to be asked for one
again is to be asked for the same worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

ProvisionedState = Literal["starting", "running", "ended", "failed"]


class Provisioned(msgspec.Struct, frozen=True):
    """One worker that was asked for, as its provisioner sees it."""

    name: str
    state: ProvisionedState
    """*ended*: of its own accord, or because it was released."""
    since: int = 0
    """When it was asked for, on the clock of the provisioner's process."""
    detail: str = ""
    """Where it is; of one that has ended, why, as its own last words if there are any."""
    released: bool = False
    """It was told to end: then it is no failure if it never joined."""


class Capacity(msgspec.Struct, frozen=True):
    """What one more worker would bring."""

    permits: dict[str, int]
    """Per executor; −1 is unlimited, 0 none."""
    total: int = -1
    """Over all executors; −1 is unlimited."""
    labels: dict[str, str] = {}
    steps: dict[str, str] | None = None
    """Step → signature. None: not known before it is there."""


class Provisioner(Protocol):
    """Starts and ends workers when `max_workers` allows more; see docs/provisioning.md."""

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        """What a worker with these labels would bring; None: it cannot provide one. Answers from memory."""
        ...

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> list[str]:
        """Ask for `n` more workers with these labels, to be called `names`. Returns the names that were granted.

        It need not wait until they run. Raised is only what says that none of them will come: where
        some do, those are returned. Whoever does not answer in time may still have started them.
        """
        ...

    async def list(self) -> list[Provisioned]:
        """What it was asked for and has not forgotten: all that live, and those that ended lately."""
        ...

    async def release(self, name: str) -> None:
        """Let this one drain and end. An unknown name changes nothing."""
        ...

    async def close(self) -> None:
        """Nothing more will be asked for; what ends with this process ends now."""
        ...
