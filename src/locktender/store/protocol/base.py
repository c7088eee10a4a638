"""What every role needs of a store: opening it, its time, its wake-ups, its large values."""

from __future__ import annotations

from typing import Protocol, Self


class StoreBase(Protocol):
    async def open(
        self, *, migrates: bool = True, creates: bool = True, brief: bool = False
    ) -> None:
        """Creates or migrates the schema; refuses a newer one, a corrupt, read-only or locked file.

        migrates  False: a schema that exists is not changed; an older one is refused too
        creates   False: raises `NotFound` where there is no store yet
        brief     for one command: one connection for everything, each part opened when it is first used
        """
        ...

    async def close(self) -> None: ...
    @property
    def listens(self) -> bool:
        """Whether offers reach this process by notification: then none are stored for its worker."""
        ...

    def twin(self) -> Self:
        """A second store object for the same place, not opened yet: for a thread with its own loop."""
        ...

    def steady(self) -> int:
        """Microseconds by a clock that never jumps. Those of `now` pass as fast, unless its clock is set."""
        ...

    async def now(self) -> int:
        """The store's time: the only clock that processes compare."""
        ...

    async def wait(self, timeout_us: int, since: int = -1) -> int:
        """Returns a mark when another process has committed something, or after `timeout_us`.

        Pass the mark as `since` to miss nothing committed in between, also with several
        waiters on one store. Without it, everything since the last wait of any caller counts.
        """
        ...

    async def put_blob(self, data: bytes) -> str:
        """Stores `data` under its content hash, which it returns."""
        ...

    async def get_blob(self, digest: str) -> bytes: ...
