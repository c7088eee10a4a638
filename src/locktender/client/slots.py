"""`slots()` for sync code."""

from __future__ import annotations

from types import TracebackType

from locktender.base.errors import LeaseLost
from locktender.client.bridge import Bridge
from locktender.client.slots_async import AsyncSlots, Held


class Slots:
    """Made by `client.slots(...)`: `with client.slots("db", 2) as held:`.

    A thread cannot be interrupted: if the slots are lost, `held.lost` is set,
    `held.check()` raises `LeaseLost`, and so does the end of the block.
    """

    def __init__(self, bridge: Bridge, slots: AsyncSlots) -> None:
        self._bridge = bridge
        self._slots = slots
        self._held: Held | None = None

    def __enter__(self) -> Held:
        self._held = self._bridge.call(self._slots.acquire())
        return self._held

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        held = self._held
        if held is None:
            return
        if not self._bridge.guard.closed:
            self._bridge.call(self._slots.release())
        if held.lost.is_set():
            if error is None:
                raise held.error()
            if not isinstance(error, LeaseLost):
                error.add_note(str(held.error()))
