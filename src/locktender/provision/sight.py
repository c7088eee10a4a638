"""What a leader sees of workers that were asked for, what it knows of each, and what it plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from locktender.base.model import WorkerRow
from locktender.kernel.demand import Demand
from locktender.provision.dealing import Ask
from locktender.provision.protocol import Provisioned


class Stored(NamedTuple):
    """A worker that was asked for, by this leader or by another, as the store has it."""

    name: str
    until: int
    """If it has not joined by then, nobody waits for it any longer."""
    joined: bool = False
    """It has been there, and may be gone again."""
    ask: Ask | None = None
    """What it was asked for with; None: nobody here can read it."""


class Sight(NamedTuple):
    """What a leader sees at one instant; the stored names are read after the list."""

    demand: Demand
    workers: Sequence[WorkerRow]
    listed: Sequence[Provisioned]
    stored: Sequence[Stored] = ()
    term: int = 0
    """Another than in the sight before: meanwhile another process may have led."""
    wrong: str = ""
    """What is new and cannot be right about the list."""


class Plan(NamedTuple):
    asks: tuple[Ask, ...] = ()
    give_up: tuple[str, ...] = ()
    """To be released: they have not joined in time."""
    gone: tuple[str, ...] = ()
    """Stored names that count no longer."""


@dataclass(slots=True)
class Known:
    """A worker that was asked for."""

    until: int
    """Then it is given up, unless it is there."""
    ask: Ask | None = None
    """None: it was found listed, and nobody here knows who asked for it."""
    ours: bool = False
    """This process asked for it, and knows how it ends."""
    joined: bool = False
    """It was seen."""
    came: bool = False
    """It has joined by the store's word, seen or not."""
    given_up: bool = False
    surplus: bool = False
    """It was granted beyond what was asked for, and told to end."""
    left_at: int | None = None
    """Since when nobody has seen or listed it; None: it is there, or has not come yet."""

    @property
    def awaited(self) -> bool:
        return not (self.joined or self.came or self.told_to_end)

    @property
    def told_to_end(self) -> bool:
        return self.given_up or self.surplus
