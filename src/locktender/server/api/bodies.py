"""What requests contain, as Structs: bodies and query strings. The OpenAPI document is made of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from locktender.base.model import Keep, OnDuplicate

Span = Annotated[str | int | float, Meta(description='Seconds, or "500ms", "90s", "1h30m".')]
TagMap = Annotated[dict[str, str | int | bool], Meta(description="At most 64.", max_length=64)]
Priority = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
PageSize = Annotated[int, Meta(ge=1, le=1_000)]
States = Annotated[
    str, Meta(description="States of runs, separated by commas: `failed,timed_out`.")
]
TagFilter = Annotated[
    str, Meta(description="Runs with all of these tags: `tenant=acme,kind=bulk`.")
]
MAX_RUNS = 10_000


class RunCall(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One call of a flow and its options. An option that is left out is the flow's own."""

    args: dict[str, Any] = {}
    """Arguments by name."""
    tags: TagMap | None = None
    priority: Priority | None = None
    """Higher goes first."""
    key: str | None = None
    """Of the active runs of a key there is one."""
    on_duplicate: OnDuplicate = "attach"
    """Where the key belongs to an active run."""
    deadline: Span | None = None
    """From now on; then the run ends `timed_out`."""
    queue_timeout: Span | None = None
    dispatch_deadline: Span | None = None
    delay: Span | None = None
    start_at: datetime | None = None
    keep: Keep | None = None
    max_queued: int | None = None
    debounce: Span | None = None
    throttle: str | None = None
    """`60/min`"""


class RunBody(RunCall, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A run to submit."""

    flow: str
    """The name of a flow, as a worker announced it."""


class RunsBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Runs of one flow to submit together."""

    flow: str
    runs: Annotated[list[RunCall], Meta(min_length=1, max_length=MAX_RUNS)]
    partial: bool = False
    """False: all runs or none. True: what fits; the others have an error in their place."""


class WhichRuns(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Runs by id, or all that match."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_RUNS)] | None = None
    status: list[str] | None = None
    tags: TagMap | None = None
    flow: str | None = None


class CancelBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Why, and how."""

    reason: str = ""
    force: bool = False
    """True: without clean-up steps."""


class CancelRunsBody(WhichRuns, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Runs to cancel."""

    reason: str = ""
    force: bool = False


class CancelQueuedBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Queued runs to cancel, by id or all that match."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_RUNS)] | None = None
    tags: TagMap | None = None
    flow: str | None = None
    reason: str = ""


class PauseRunsBody(WhichRuns, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Runs to pause."""

    reason: str = ""


class PriorityRunsBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Queued runs, by id or all that match, and their new priority."""

    priority: Priority
    ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_RUNS)] | None = None
    tags: TagMap | None = None
    flow: str | None = None


class ReaderBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How far a named reader came."""

    cursor: Annotated[str, Meta(min_length=1, max_length=1_000)]


class ClearCacheBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which cached results to forget; nothing: all."""

    step: str | None = None
    flow: str | None = None


class RetryBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How to try a run again."""

    from_step: str | None = None
    """Also run this step and all that follow it again."""
    args: dict[str, Any] | None = None
    """Arguments that take the place of the run's own: that is a new run."""


class ReasonBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Why."""

    reason: str = ""


class PriorityBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The new priority."""

    priority: Priority


class EventBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An event for a run."""

    event: str
    payload: Any = None
    id: str | None = None
    """A second event of the same id changes nothing."""


class TopicBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An event for all runs that wait for a topic."""

    payload: Any = None
    match: dict[str, Any] | None = None
    id: str | None = None


class AnswerBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The answer to one wait."""

    token: str
    payload: Any = None


class PoolBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What to set of a pool; the rest stays as it is."""

    limit: int | UnsetType = UNSET
    """1 and up; -1 is unlimited."""
    lease: Span | UnsetType | None = UNSET
    rate: str | UnsetType | None = UNSET
    """`60/min`; null takes it away."""
    burst: int | UnsetType = UNSET
    expected: int | None = None
    """Only if the limit is this now; else 412."""


class LimitBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The new value of a limit."""

    value: int | str | bool
    """A number, -1 is unlimited; for `fair` a tag, for `age_boost` a duration, for `placement` a word."""
    weights: dict[str, int] | UnsetType = UNSET
    """Only of `fair`: turns by value of the tag."""
    expected: int | None = None
    """Of a number of runs: only if it is this now; else 412."""


class TagLimitBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What to set for runs with a tag; the rest stays as it is."""

    limit: int | None = None
    """Runs executing at once: 1 and up; -1 is unlimited."""
    max_active: int | None = None
    """Queued and running runs: a ceiling."""
    counts_while_waiting: bool | None = None
    """True: a run keeps its place while it sleeps or waits for an event."""
    expected: int | None = None
    """Only if `limit` is this now; else 412."""


class ScheduleBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A schedule: one of `cron`, `every` and `at`."""

    flow: str
    args: dict[str, Any] = {}
    cron: str | None = None
    every: Span | None = None
    at: datetime | None = None
    tz: str = "UTC"
    jitter: Span | None = None
    overlap: Literal["skip", "queue", "replace", "allow"] = "skip"
    catch_up: Literal["none", "last", "all"] = "none"
    max_active: int | None = None
    paused: bool = False
    tags: TagMap | None = None
    """Of its runs, beside those of the flow."""


class TokenBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A token to make."""

    name: str
    """Recorded with every change that is made with it."""
    scopes: Annotated[
        list[Literal["read", "submit", "operate", "admin"]], Meta(min_length=1, max_length=4)
    ]
    """Each includes those before it."""
    tags: TagMap | None = None
    """It sees, submits and changes only what has all of these; none: everything."""
    expires: Span | None = None
    """From now on; none: never."""


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class RunsQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which runs to list."""

    status: States | UnsetType = UNSET
    tags: TagFilter | UnsetType = UNSET
    flow: str | UnsetType = UNSET
    limit: PageSize = 100
    cursor: str | UnsetType = UNSET
    """`next` of the page before."""
    beginning: str | UnsetType = UNSET
    """Runs whose id begins so, by id: 4 characters and more. Nothing else is asked then."""


class CountQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which runs to count."""

    status: States | UnsetType = UNSET
    tags: TagFilter | UnsetType = UNSET
    flow: str | UnsetType = UNSET


class LongQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How much to list."""

    limit: Annotated[int, Meta(ge=1, le=100_000)] = 100


class PagedQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How much to list, and from where."""

    limit: Annotated[int, Meta(ge=1, le=100_000)] = 100
    cursor: str | UnsetType = UNSET
    """`next` of the page before."""


class EndedQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """For which runs to wait, and how long."""

    numbers: Annotated[
        str,
        Meta(
            description="The `number` of each run, separated by commas: `7,8`; 500 at most.",
            pattern=r"^([1-9]\d{0,12}(,[1-9]\d{0,12}){0,499})?$",
        ),
    ] = ""
    wait: Annotated[float, Meta(ge=0, le=30)] = 0
    """Seconds."""


class CostQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Of which time."""

    last: Annotated[str, Meta(description='Back from now: `"24h"`.')] = "24h"


class HistoryQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """From where to read."""

    after: Annotated[str, Meta(max_length=1_000)] = "start"
    """The `cursor` of an event or of the part before, `start` or `now`."""
    run: str | UnsetType = UNSET
    """Only of this run."""
    skip_pruned: bool = False
    """True: go on where events behind the cursor were pruned; else that is refused."""


class CacheQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which cached results."""

    step: str | UnsetType = UNSET
    flow: str | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 1_000


class CountsQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Of which task."""

    task: Annotated[int, Meta(ge=1, le=2**63 - 1)] | UnsetType = UNSET


class PartQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which part of a long list."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """`next` of the part before."""


class TimelineQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which part of a timeline, in microseconds from the start of the run."""

    from_us: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    until_us: Annotated[int, Meta(ge=1, le=2**63 - 1)] | UnsetType = UNSET
    step: Annotated[str, Meta(max_length=500)] = ""
    """Only items of this step, 200 at most."""
    after: Annotated[int, Meta(ge=-1, le=2**63 - 1)] = -1
    """`next` of the part before: an index."""


class LogsQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which lines."""

    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    task: Annotated[int, Meta(ge=1, le=2**63 - 1)] | UnsetType = UNSET
    token: Annotated[int, Meta(ge=1, le=2**63 - 1)] | UnsetType = UNSET
    """With `task`: only of this attempt, as `logs/counts` names it."""
    known: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """With `token`: lines of the attempt that were read before."""


class ResultQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How long to wait for the end of the run."""

    wait: Annotated[float, Meta(ge=0, le=30)] = 0
    """Seconds."""


class EventsQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which events to follow."""

    run: str | UnsetType = UNSET
    """Only of this run."""
    subject: Annotated[str, Meta(description="Only these subjects: `run,task`.")] | UnsetType = (
        UNSET
    )
