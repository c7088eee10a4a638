"""What workers announce and clients without their code ask for: flows by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from locktender.base.announced import AnnouncedFlow
from locktender.store.protocol.base import StoreBase


class Naming(StoreBase, Protocol):
    async def announce(self, flows: Sequence[AnnouncedFlow]) -> None:
        """Stores what workers say of their flows. It stays when they are gone; the last word counts."""
        ...

    async def flows(self, names: Sequence[str] | None = None) -> list[AnnouncedFlow]:
        """The announced flows of these names, or all of them, by name. What cannot be read is left out."""
        ...

    async def forget_flow(self, name: str) -> bool:
        """Removes what was announced of a flow; whether there was anything."""
        ...
