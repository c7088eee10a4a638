"""What clients write: runs, retries, requests to the leader, limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec

from locktender.base.model import NewRun, Outcome, Request
from locktender.store.protocol.base import StoreBase


class Submit(msgspec.Struct, frozen=True):
    runs: list[NewRun]
    graphs: dict[str, bytes]
    """Content hash → JSON, of every graph the runs name."""
    partial: bool = False
    """False: all or none. True: what fits is admitted, the rest is rejected."""


class Submitted(msgspec.Struct, frozen=True, gc=False):
    """The answer to one run of a submission."""

    id: str
    """The run the caller now has: its own, or the one it attached to."""
    seq: int
    outcome: Outcome
    ceiling: str = ""
    """On rejection: which ceiling (`max_active`, `tenant=acme` …)."""
    rule: str = ""
    """On rejection: what sets that ceiling (`max_active`, `tenant=*` …)."""
    active: int = 0
    limit: int = 0
    wanted: int = 1
    """On rejection: how many runs of the submission count under that ceiling, all or none.

    Where they are more than `limit`, they never fit together: `retry_after_us` is 0 then."""
    retry_after_us: int = 0
    as_of: int = 0
    """On rejection: the last event seq when it was decided, so that the checker can verify it.

    0: unknown, because a commit in flight may still add an event before that seq."""
    difference: str = ""
    """On `duplicate`: what differs from the active run of the same key."""


class SetLimit(msgspec.Struct, frozen=True):
    kind: str
    name: str
    rule: bytes | None
    """JSON; None resets the live setting (or withdraws the declared one)."""
    who: str
    declared: bool = False
    """True: the default from code or configuration; it never touches an operator's live setting."""
    reason: str = ""
    patch: bytes | None = None
    """JSON object of fields to change in the rule in force, in this transaction; null removes a field.

    `rule` is then only the starting point where (kind, name) has no rule of its own yet.
    """
    expected: int | None = None
    """The `limit` in force that the sender has seen: where it is another one, `LimitChanged` is raised."""
    version: str | None = None
    """`LimitRow.version` before all changes of this call, or `*` for any rule; else `LimitChanged` is raised."""


MAX_RULES_COUNTED = 50


class Rejections:
    """Runs that ceilings refused in this process since the store was opened, by the rule that sets the ceiling."""

    def __init__(self) -> None:
        self.by_rule: Counter[str] = Counter()

    def count(self, answers: list[Submitted]) -> list[Submitted]:
        for answer in answers:
            if answer.outcome == "rejected":
                known = answer.rule in self.by_rule or len(self.by_rule) < MAX_RULES_COUNTED
                self.by_rule[answer.rule if known else "other"] += 1
        return answers


class Submitting(StoreBase, Protocol):
    rejections: Rejections

    async def submit(self, submit: Submit) -> list[Submitted]: ...
    async def retry(
        self, run_ids: list[str], again: Sequence[int] = (), who: str = ""
    ) -> list[Submitted]:
        """Queues ended runs again, under the same ceilings as a submission; finished tasks keep their outputs.

        `again`: nodes of their graph that run again though they finished; with it, runs that succeeded are
        queued, too. `who` is kept in the history.
        """
        ...

    async def ask(self, requests: list[Request]) -> None:
        """Stores requests to the leader."""
        ...

    async def set_limit(self, changes: list[SetLimit]) -> None: ...
