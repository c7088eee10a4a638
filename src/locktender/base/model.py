"""What passes between clients, store and workers: runs, failures, workers, requests.

What a body logged: lines, and the one row an attempt's lines are kept in.

What a store knows of workers that were asked for, and what their provisioner is doing.

Sessions of the database server that delay the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec

from locktender.base.durations import spoken
from locktender.base.errors import LimitChanged
from locktender.base.ids import RunId

RunKind = Literal["flow", "hold"]
OnDuplicate = Literal["attach", "reject", "replace", "skip_if_finished"]
Keep = Literal["newest", "oldest"]
"""Which runs of a key stay where more are submitted than may wait."""
Outcome = Literal["created", "attached", "finished", "duplicate", "rejected", "in_flight"]


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an attempt, a task or a run ended badly."""

    type: str
    """The exception's class, or one of ours: `capacity`, `queue_timeout`, `worker_lost`, `internal` …"""
    message: str
    traceback: str | None = None
    retryable: bool = True
    retry_after_us: int | None = None
    """Set by `Retry(after=…)`: overrides the back-off."""
    node: str | None = None

    def text(self) -> str:
        """`type: message`, once: our own failures carry their type in the message already."""
        if self.message.startswith(f"{self.type}:"):
            return self.message
        return f"{self.type}: {self.message}"


MISSING_VALUE: Final = "missing_value"
"""The type of a failure that holds the run: a large value that it needs is gone, or has other content."""
RUN_AGAIN: Final = Failure("again", "a retry runs it again", retryable=False)
"""The error of an ended task that the next start of its run takes as not done."""


class ThrottleLine(msgspec.Struct, frozen=True, gc=False):
    """At most `count` runs under one name start in any span of `per_us`."""

    name: str
    count: int
    per_us: int


class NewRun(msgspec.Struct, frozen=True, gc=False):
    """A run as its submitter hands it in. Durations are relative: the store's clock makes instants of them.

    Nothing in it can lead back to it, so the garbage collector need not visit ten thousand of them.
    """

    id: RunId
    flow: str
    graph: str
    """Content hash of the graph."""
    params: bytes
    """JSON object: the flow's parameters by name."""
    consts: bytes
    """JSON array: values the graph's `Const` templates point to."""
    tags: dict[str, str] = {}
    priority: int = 0
    key: str | None = None
    on_duplicate: OnDuplicate = "attach"
    deadline_us: int | None = None
    queue_timeout_us: int | None = None
    dispatch_deadline_us: int | None = None
    kind: RunKind = "flow"
    trace: str | None = None
    """The submitter's trace (W3C `traceparent`): its steps' spans belong to it."""
    delay_us: int | None = None
    """It waits so long before it is queued."""
    start_at: int | None = None
    """The instant at which it is queued; one that has passed is now."""
    keep: Keep | None = None
    """Runs of its key wait for each other, at most `max_queued` of them: which stay."""
    max_queued: int = 1
    throttle: ThrottleLine | None = None
    scheduled: tuple[str, int] | None = None
    """The schedule and the tick that it is the run of."""


class RunRow(msgspec.Struct, frozen=True, gc=False):
    """A stored run. Like `NewRun`, nothing in it leads back to it: a leader holds one per lane."""

    seq: int
    id: RunId
    flow: str
    graph: str
    params: bytes
    consts: bytes
    tags: dict[str, str]
    priority: int
    key: str | None
    kind: RunKind
    generation: int
    """0 at first; one more each time the run is retried."""
    state: str
    verdict: str | None
    lane: int
    waits_for: int | None
    """The run with the same key that this one replaces: it starts when that one has ended."""
    queued_at: int
    started_at: int
    ended_at: int
    deadline_at: int | None
    queue_timeout_us: int | None
    dispatch_deadline_us: int | None
    output: bytes | None
    error: bytes | None
    trace: str | None = None
    unreadable: str = ""
    """What of the stored row cannot be read; a harmless value stands in its place."""


class Mail(NamedTuple):
    """An event that can be delivered to a task that waits for it."""

    run: int
    task: int
    n: int
    """Events are delivered in the order of their numbers."""
    name: str
    payload: bytes


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """How far a running attempt is, as its body reported."""

    token: int
    done: float
    total: float | None = None
    message: str = ""


class Unstopped(msgspec.Struct, frozen=True, array_like=True):
    """A running attempt that was asked to stop and has not."""

    token: int
    task: int
    step: str
    reason: str
    """`timeout`, `cancel`, `drain` …"""
    since: int
    """When it was told, about: the store's time by the worker's own clock since it joined."""


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker as it last described itself. Its lease covers all its tasks and slots."""

    id: str
    host: str
    pid: int
    version: str
    permits: dict[str, int]
    """Per executor; −1 is unlimited."""
    total: int
    """Over all executors; −1 is unlimited."""
    claim: int
    """How many offers it will take now: permits free under the pressure it feels."""
    listens: bool = False
    """Offers reach it by notification. Else, or where it is not known, they are stored for it to read."""
    full: tuple[str, ...] = ()
    """Executors that are nearly full: it takes none of theirs until there is room again."""
    share: int = 100
    """Percent of its permits it uses under the pressure it feels."""
    pressed: dict[str, float] = {}
    """What presses it, and above what: `memory` (a share, 0 to 1), `latency` (seconds)."""
    free: int = 0
    """Permits that were not in use at the moment of the beat, over all executors; −1: there is no bound."""
    labels: dict[str, str] = {}
    steps: dict[str, str] | None = None
    """Step → signature. None: any step (tests, simulator)."""
    flows: dict[str, str] = {}
    """Flow → signature, of the flows it could trace."""
    draining: bool = False
    ending: bool = False
    """Its process was told to end, or its lifetime is over: no order takes this drain back."""
    in_flight: int = 0
    memory: float = 0.0
    """Share of its memory in use, 0 to 1."""
    p99_us: int = 0
    """How long its tasks of the last minute took, all but the slowest hundredth; 0: none yet."""
    lag_us: int = 0
    """How late its loop was at worst in the last seconds."""
    provision: str = ""
    """What a provisioner calls it; empty: it was started by hand."""
    progress: list[Progress] = []
    """What its attempts reported last; bounded, the latest are kept."""
    unstopped: list[Unstopped] = []
    """Attempts that were asked to stop a while ago and still run; bounded, the oldest are kept."""
    leaves: tuple[tuple[int, int], ...] = ()
    """The drain list: (task, token) of each attempt it still has; if it is lost they are handed back."""
    leaves_all: bool = False
    """The list is too long: all attempts it has."""
    since: int = 0
    lease_until: int = 0
    unanswered: int = 0
    """Offers in a row that it left unanswered, by the leader's count."""
    asked_again_at: int = 0
    """Of a worker with unanswered offers: the leader offers it nothing before."""
    unreadable: str = ""
    """What of its stored row cannot be read. Without a description it has no permits, so it gets no offers."""


Proof = Literal["held", "gone", "none"]
"""What is known of a worker's process without its help: it lives, it is dead, or nothing."""


class WorkerLife(NamedTuple):
    """What the store knows of a worker's life."""

    worker: str
    lease_until: int
    """In the store's time; changes with every renewal. 0: the worker ended its lease itself."""
    lease_us: int
    proof: Proof


class DeadWorker(NamedTuple):
    """A worker to be declared lost, unless it has renewed its lease since `lease_until` was read."""

    worker: str
    lease_until: int
    reason: str


RequestKind = Literal["cancel", "drop", "reprioritise", "drain", "undrain", "cache_clear", "why"]
"""`drop`: cancel it, if it has not started. `cache_clear`: forget cached results.
`why`: a question; `leader/questions.py` answers."""


class Request(msgspec.Struct, frozen=True):
    """What a client asks of the leader: a request, not a state. The owner of the moment carries it out."""

    kind: RequestKind
    subject: str
    """A run's id, a worker's, a step's name (empty: of all), or a task's number."""
    priority: int | None = None
    force: bool = False
    """A cancel that does not wait for clean-up steps."""
    who: str = ""
    reason: str = ""
    flow: str = ""
    """Of cached results: only those that runs of this flow made."""


class StoredRequest(msgspec.Struct, frozen=True):
    seq: int
    request: Request | None
    """None: it cannot be read."""
    taken: int = 0
    """How many leaders began to carry it out before."""


class LimitRow(msgspec.Struct, frozen=True):
    """One rule as stored: what code declared, what an operator set. JSON of the rule, or None."""

    kind: str
    name: str
    declared: bytes | None
    live: bytes | None
    unreadable: str = ""
    """What of the stored rule cannot be read, and what is in force in its place."""

    @property
    def effective(self) -> bytes | None:
        return self.declared if self.live is None else self.live

    @property
    def version(self) -> str:
        """Another one after every change of the rule."""
        both = msgspec.json.encode((self.declared, self.live))
        return hashlib.sha256(both).hexdigest()[:16]

    def check(self, version: str | None) -> None:
        """Raises `LimitChanged` if that is not its version. `*`: any, if there is a rule; None: any."""
        if version is None or version == (self.version if self.effective is None else "*"):
            return
        if version != self.version:
            raise LimitChanged(
                f"{self.kind} {self.name}".strip() + " was changed meanwhile.",
                field="version",
                got=version,
                hint="Read it again, and decide anew.",
            )


class LimitChange(msgspec.Struct, frozen=True):
    """An entry of the limits' history: who changed what, when, from what to what."""

    at: int
    who: str
    kind: str
    name: str
    before: bytes | None
    after: bytes | None
    reason: str = ""


MAX_LINES: Final = 1_000
MAX_BYTES: Final = 64 * 1024
MAX_LINE: Final = 4_000
"""Of one attempt: the newest lines and bytes are kept. A longer line is cut."""


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    at: int
    """The process's own clock, in microseconds since the epoch."""
    level: int
    logger: str
    text: str


class AttemptLog(msgspec.Struct, frozen=True, array_like=True):
    """The lines of one attempt, as stored."""

    dropped: int
    """Earlier lines that were more than is kept."""
    lines: list[LogLine]


class LogRow(NamedTuple):
    task: int
    token: int
    attempt: int
    body: bytes
    lines: int = 0
    """How many lines the attempt has logged in all, also those that were dropped."""
    last_at: int = 0
    """Of its newest line, by the clock of its process."""


class LogFilter(NamedTuple):
    """The logs of a run's attempts, by (task, token); `after` is where the last page ended."""

    run: int
    task: int | None = None
    after: tuple[int, int] = (0, 0)
    limit: int = 200


class NewestLogs(NamedTuple):
    """Attempts of a run, the newest line first; `before`: `last_at`, task, token where the last page ended."""

    run: int
    task: int | None = None
    before: tuple[int, int, int] = (2**63 - 1, 2**63 - 1, 2**63 - 1)
    limit: int = 200


class LogTotal(NamedTuple):
    attempts: int
    lines: int
    """Of all of these attempts, also those that were dropped."""


class NamedLog(NamedTuple):
    """What an attempt logged, and of which step and item it is."""

    row: LogRow
    node: int
    idx: int


encode_log: Callable[[AttemptLog], bytes] = msgspec.json.Encoder().encode
decode_log: Callable[[bytes], AttemptLog] = msgspec.json.Decoder(AttemptLog).decode


class AskedWorker(msgspec.Struct, frozen=True):
    """A worker that a leader asked for, stored before the provisioner is called."""

    name: str
    """`WorkerRow.provision` of the one that comes."""
    asked_at: int
    expires_at: int
    """If it has not joined by then, it does not count any longer."""
    joined_at: int = 0
    """0: not yet."""
    body: bytes = b""
    """What it was asked for with, as JSON of the leader's controller."""


class ProvisionStatus(msgspec.Struct, frozen=True):
    """How a leader's provisioner stands; stored when it changes, so instants and not what is left of them."""

    text: str
    cooling_until: int = 0
    """Nothing is asked for before, in the store's time."""
    after: str = ""
    """What went wrong last."""

    def words(self, now: int) -> str:
        if self.cooling_until > now:
            left = spoken(self.cooling_until - now)
            return f"{self.text}; cools down {left} after: {self.after}"
        return f"{self.text}; the last one failed: {self.after}" if self.after else self.text


HELD_UP: Final = {
    "lock": "it holds a lock that locktender waits for",
    "history": "audit, checkpoints and pruning wait for its transaction; runs do not",
    "write": "it is stopped and holds the write lock: nothing is written until it goes on or ends",
    "cleanup": "old versions of rows cannot be removed, and every commit becomes slower",
}


class BlockingSession(msgspec.Struct, frozen=True):
    """A session of the database server that delays the store."""

    holds: Literal["lock", "history", "cleanup", "write"]
    """What it delays: see `HELD_UP`."""
    pid: int
    """0: a prepared transaction, which has no session."""
    application: str
    """Of a prepared transaction: its name."""
    database: str
    age_us: int | None
    """Of its transaction; None: this role may not know (grant it `pg_read_all_stats`)."""

    def text(self) -> str:
        what = f"Session {self.pid}" if self.pid else "Prepared transaction"
        what = f"Process {self.pid}" if self.holds == "write" else what
        age = "" if self.age_us is None else f", for {spoken(self.age_us)} in a transaction"
        name = self.application or "no name"
        return f"{what} ({name}, database {self.database}{age}): {HELD_UP[self.holds]}."


class HeldUp(msgspec.Struct, frozen=True):
    """What delays the store, as the database server sees it; on SQLite, a process stopped in its write."""

    lag_us: int = 0
    """How old the first event is that is visible and not settled; 0: there is none."""
    sessions: tuple[BlockingSession, ...] = ()
    """Of each kind the oldest ones."""
