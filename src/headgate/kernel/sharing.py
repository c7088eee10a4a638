"""Fair turns told: how many go before a waiter where the values of one tag take turns.

A turn is no gate: it blocks nobody and decides only who is next when a gate
opens. Whoever is asked from rows does not know whose turn it is this very
moment (that begins anew with every leader), but who shares the turns, and so
how many of them come before a waiter at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.base.limits import Fair


class Sharing(NamedTuple):
    """A waiter among those it takes turns with."""

    fair: Fair
    value: str
    own: int
    """How many of its own value stand before it."""
    others: Mapping[str, int]
    """Value → how many of it wait, as far as known."""
    more: bool = False
    """There are values that are not named here."""

    @property
    def ahead(self) -> int:
        """How many go first at most: its own, and for each of their turns what the others' weights buy."""
        own = self.fair.weight(self.value)
        turns = self.own + 1
        return self.own + sum(
            min(waiting, -(-turns * self.fair.weight(value) // own))
            for value, waiting in self.others.items()
        )

    @property
    def text(self) -> str:
        values = len(self.others) + 1
        several = f"{'more than ' if self.more else ''}{values} values of {self.fair.key} wait"
        weight = self.fair.weight(self.value)
        share = f", {self.value!r} with weight {weight}" if self.fair.weights else ""
        return (
            f"fair turn: {several} and take turns{share};"
            f" {self.own} with {self.fair.key}={self.value} before it"
        )
