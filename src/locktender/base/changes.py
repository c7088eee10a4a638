"""Rows as they pass between the kernel, the store and the worker. Those that only a commit has: `commits.py`.

Named tuples in the order of their columns: the hot path binds them to SQL
as they are. The kernel makes them, the store writes them, `load` reads them.
"""

from __future__ import annotations

from typing import NamedTuple


class TaskRow(NamedTuple):
    """The whole row of a task."""

    id: int
    node: int
    idx: int
    """The item's index; −1 for a plain step, and for a map that was skipped before it was expanded."""
    state: str
    attempt: int = 0
    """Attempts a worker accepted, ever."""
    tries: int = 0
    """Attempts charged against `retries` since the run was last (re)submitted."""
    abandons: int = 0
    offers: int = 0
    token: int = 0
    worker: str | None = None
    held: bytes | None = None
    """JSON `{pool: slots}` while scheduled or running: usage is derived from these rows."""
    input: bytes | None = None
    """JSON `{"args": […], "kwargs": {…}}`; of an item only what differs from its siblings."""
    output: bytes | None = None
    error: bytes | None = None
    """JSON of `base.model.Failure`."""
    requested_at: int = 0
    scheduled_at: int = 0
    started_at: int = 0
    ended_at: int = 0
    not_before: int = 0
    eligible_at: int = 0
    """When it first passed every gate but the worker's: the dispatch deadline's clock. 0: not yet."""


class End(NamedTuple):
    """How an attempt ended, by the worker that accepted it (handed_back also before acceptance: a decline)."""

    task: int
    token: int
    state: str
    output: bytes | None = None
    error: bytes | None = None
    """JSON of `base.model.Failure`."""
    reason: str = ""
    worker: str = ""
    """Whose attempt it was; no other worker writes its end."""


class CachedResult(NamedTuple):
    """The result of a step, kept for later tasks with the same key."""

    key: str
    step: str
    flow: str
    """Of the run that made it."""
    scope: str
    task: int
    """Which made it; its run may be pruned."""
    made_at: int
    expires_at: int
    size: int
    """Bytes of the value, also where `output` refers to it."""
    output: bytes


class Order(NamedTuple):
    """What a worker in another process is to do: accept an offer, stop a task it runs, drain or not."""

    worker: str
    task: int
    token: int
    kind: str
    """`offer`, `stop`, `drain` or `undrain` (of the last two `task` is minus the request's number)."""
    reason: str = ""


class Bucket(NamedTuple):
    """A rate's state: the instant from which the next grant is free (GCRA's theoretical arrival time)."""

    pool: str
    tat: int


class Reservation(NamedTuple):
    """Slots kept free for a waiter that was bypassed too often; stored so that every `why` can show it."""

    task: int
    pool: str
    slots: int


class Linger(NamedTuple):
    """Slots of a dead worker's attempt in a pool with a longer lease: taken until that has passed too."""

    task: int
    token: int
    pool: str
    slots: int
    until: int
    worker: str


class KeptPlace(NamedTuple):
    """A run that has begun, has no place now, and keeps it at some limits of tags (`counts_while_waiting`)."""

    run: int
    id: str
    tags: dict[str, str]
    rules: tuple[str, ...]
    """The names of those limits."""
    since: int = 0
    """When it started."""
