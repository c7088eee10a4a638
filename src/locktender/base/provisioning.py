"""What a store knows of workers that were asked for, and what their provisioner is doing."""

from __future__ import annotations

import msgspec

from locktender.base.durations import spoken


class AskedWorker(msgspec.Struct, frozen=True):
    """A worker that a leader asked for, stored before anybody was asked to start it."""

    name: str
    """`WorkerRow.provision` of the one that comes."""
    asked_at: int
    expires_at: int
    """If it has not joined by then, nobody waits for it any longer."""
    joined_at: int = 0
    """0: not yet."""
    body: bytes = b""
    """What it was asked for with, as JSON of whoever asked."""


class Said(msgspec.Struct, frozen=True):
    """How a leader's provisioner stands; stored when it changes, so instants and not what is left of them."""

    text: str
    cooling_until: int = 0
    """Nothing is asked for before, in the store's time."""
    after: str = ""
    """What went wrong last."""

    def words(self, now: int) -> str:
        if self.cooling_until > now:
            left = spoken(self.cooling_until - now)
            return f"{self.text}; cools down {left} after: {self.after}"
        return f"{self.text}; the last one failed: {self.after}" if self.after else self.text
