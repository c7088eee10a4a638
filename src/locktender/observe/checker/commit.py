"""A commit as the history shows it: consecutive events of one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from locktender.base.events import Event


class Released(NamedTuple):
    """What a task gave back."""

    run: int
    node: int
    executor: str
    pools: dict[str, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """The rows of one cycle of a leader, or of one verb of a client or a worker."""

    seq: int = 0
    at: int = 0
    term: int = 0
    cycle: int = 0
    actor: str = ""

    @property
    def leader(self) -> bool:
        return self.actor.startswith("leader:")

    def has(self, event: Event) -> bool:
        """A cycle is one commit though each run has a row of its own, with or without its own seq."""
        if event.actor != self.actor:
            return False
        return event.seq == self.seq or (
            event.cycle != 0 and event.cycle == self.cycle and event.term == self.term
        )


def commit_of(event: Event) -> Commit:
    return Commit(event.seq, event.at, event.term, event.cycle, event.actor)
