"""What is done with events: sent by clients, delivered by the leader to tasks that wait for them.

An event is a row, in the mailbox of a run or under a topic. Its number says its place: a wait takes the first that
it can. The leader's commit that completes the waiting task says which event it took (`Commit.mail_taken`), and
removes the wait (`Commit.waits_over`): so an event is delivered once to a run, also when a call is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from locktender.base.model import Mail
from locktender.store.protocol.base import StoreBase

MAX_MAIL = 1_000
"""Events in the mailbox of one run that no wait has taken yet."""


class SendEvent(msgspec.Struct, frozen=True):
    """To one run, by its id, or with `run` None to a topic."""

    run: str | None
    name: str
    id: str
    """A second event of the same run or topic, name and id is the first one."""
    payload: bytes
    match: str = "{}"
    """JSON object; of a topic: only waits that agree with it get the event."""
    task: int = 0
    """The answer of one wait: that of this task, which began at `since`. No other wait takes it. 0: any does."""
    since: int = 0


SendOutcome = Literal["sent", "repeated", "unknown", "ended", "over", "full"]
"""`over`: the wait that it answers stands no more."""


class EventSent(NamedTuple):
    outcome: SendOutcome
    state: str = ""
    """Of the run, where it has ended."""


class EventWaiter(NamedTuple):
    """A task that waits for an event."""

    task: int
    run: int
    name: str
    match: str
    since: int
    until: int
    run_id: str
    flow: str


class Mailing(StoreBase, Protocol):
    async def send(self, event: SendEvent) -> EventSent:
        """Puts an event into the mailbox of a run, or under a topic. It may come before the wait for it."""
        ...

    async def mail_ready(self, runs: Sequence[int]) -> list[Mail]:
        """Of each task of these runs that waits for an event: the first that it can take, in their order."""
        ...

    async def topic_waiters(self, numbers: Sequence[int]) -> list[int]:
        """Runs with a task that waits for one of these events of topics."""
        ...

    async def event_secret(self, fresh: bytes) -> bytes:
        """By which tokens of waits are signed. `fresh` is stored and returned where there is none yet."""
        ...

    async def event_waits(
        self, run_id: str | None = None, limit: int = 10_000
    ) -> list[EventWaiter]:
        """Who waits for which event, of one run or of all; the first that times out first."""
        ...
