"""What a leader sees of workers that were asked for, what it knows of each, and what it plans.

How it stands with workers that were asked for, in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from locktender.base.model import WorkerRow
from locktender.kernel.demand import Demand
from locktender.kernel.gate_names import counted
from locktender.provision.packing import Ask
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


class WorkersSeen(NamedTuple):
    """What a leader sees at one instant; the stored names are read after the list."""

    demand: Demand
    workers: Sequence[WorkerRow]
    listed: Sequence[Provisioned]
    stored: Sequence[Stored] = ()
    term: int = 0
    """Another than in the sight before: meanwhile another process may have led."""
    wrong: str = ""
    """What is new and cannot be right about the list."""


class ProvisionPlan(NamedTuple):
    asks: tuple[Ask, ...] = ()
    give_up: tuple[str, ...] = ()
    """To be released: they have not joined in time."""
    gone: tuple[str, ...] = ()
    """Stored names that count no longer."""


@dataclass(slots=True)
class KnownWorker:
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


@dataclass(slots=True)
class Standing:
    """As of the last look."""

    there: int = 0
    """Those that count, are not on their way and have not been told to end."""
    lingering: int = 0
    """Those that were told to end and still count."""
    doubled: str = ""
    """Names that more than one worker has."""
    impossible: str = ""
    """What nobody can be started for."""
    blind: bool = False
    """It could not be seen who is there."""

    def words(self, most: int, waiting: int) -> str:
        """`waiting`: how many are on their way, of at most `most`."""
        of = f"of at most {counted(most, 'worker')}"
        if self.blind:
            return f"how many {of} are there cannot be seen"
        lingering = f"{self.lingering:,} told to end and not gone yet" if self.lingering else ""
        parts = (self._here(of, waiting), lingering, self.doubled, self.impossible)
        return "; ".join(filter(None, parts))

    def _here(self, of: str, waiting: int) -> str:
        if waiting:
            return f"{waiting:,} {of} {'is on its way' if waiting == 1 else 'are on their way'}"
        if not self.there:
            return f"none {of} is on its way"
        return f"{self.there:,} {of} {'is' if self.there == 1 else 'are'} there, none is on its way"
