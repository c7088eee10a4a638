"""What goes into the checker and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from locktender.base.events import Event
from locktender.base.graph import Graph


@dataclass(frozen=True, slots=True)
class Rejection:
    """A submission that was refused, as its client saw it."""

    ceiling: str
    """`max_active`, or the counter of a tag rule: `tenant`, `tenant=acme`, `tenant=*acme`."""
    active: int
    limit: int
    as_of: int
    """The history's last seq when it was decided."""
    asked: int = 1
    """How many runs were handed in together, all or none."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """An admission ceiling a client set, and the history's last seq when it did.

    A ceiling holds from the client's commit on, while the history tells of it
    only with the leader's next cycle. A test that sets several in between says so here.
    """

    name: str
    """`max_active`, or a tag rule's name: `tenant`, `tenant=acme`, `tenant=*`."""
    limit: int
    since: int


@dataclass(frozen=True)
class History:
    """A history from its first event on, with what it refers to."""

    events: Sequence[Event]
    """In commit order: by seq, then by position in the commit."""
    graphs: Mapping[str, Graph]
    """Content hash → graph."""
    rejections: Sequence[Rejection] = ()
    max_active: Sequence[Ceiling] = ()
    complete: bool = False
    """The system is idle: every run must have ended, nothing may be held."""
    slack_us: int = 0
    """How long before its commit a leader may have read the clock. 0 for simulated time; on a live
    system rates, back-off and deadlines are decided a little before the instant the event carries."""
    checked: int = 0
    """Up to this seq the history was checked when it was whole; since then whole runs were pruned from it."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept, and where."""

    rule: str
    seq: int
    run: int
    task: int
    message: str

    def __str__(self) -> str:
        where = f"seq {self.seq}"
        if self.run:
            where += f", run {self.run}"
        if self.task:
            where += f", task {self.task}"
        return f"{self.rule} ({where}): {self.message}"


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that was ever in use of one limit."""

    name: str
    """`pool:db`, `runs`, `tag:tenant=*acme`, `window:flow/node`, `parallel:flow[:executor]`, `sequential:flow`."""
    limit: int
    """The limit in force when the peak was reached; −1: unlimited."""
    peak: int
    never_exceeded: bool
    """No grant was made beyond the limit of its moment. (After a limit was lowered, holders may be above it.)"""
