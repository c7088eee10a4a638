"""What a leader asks of the worker in its own process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from locktender.base.changes import Order
from locktender.base.graph import Node
from locktender.base.model import WorkerRow


class OwnWorker(Protocol):
    """The worker of the leader's process, under the id that it joined with.

    While it is the only worker that fits, what a commit of the leader starts here is running when the
    commit is written. Beside others it gets offers and answers them like any worker.
    """

    draining: bool

    @property
    def id(self) -> str: ...
    def describe_own(self, given: int, unstarted: Iterable[tuple[int, int]]) -> WorkerRow:
        """Its row. `given`: how many tasks the leader gave it in this term; `unstarted`: (task, token) of
        those that it has not been asked to start yet."""
        ...

    def start(
        self,
        task: int,
        token: int,
        number: int,
        run_id: str,
        node: Node,
        call: bytes,
        flow: str,
        trace: str | None,
    ) -> None:
        """Runs attempt `number` of a task. A token that was started before changes nothing."""
        ...

    def stop(self, token: int, reason: Literal["cancel"]) -> None: ...
    def receive(self, orders: list[Order]) -> None:
        """Orders that the leader committed for it: a store notifies no process of its own commits."""
        ...
