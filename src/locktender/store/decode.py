"""JSON of the store's rows: its one encoder, a decoder per type, and rows as values of the protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from locktender.base import names
from locktender.base.announced import AnnouncedFlow, read_flow
from locktender.base.changes import Bucket, CachedResult, KeptPlace, Linger, TaskRow
from locktender.base.ids import MAX_TASKS_PER_RUN
from locktender.base.limits import Limits
from locktender.base.model import (
    AskedWorker,
    Failure,
    Proof,
    ProvisionStatus,
    Request,
    RunRow,
    StoredRequest,
    WorkerLife,
    WorkerRow,
)
from locktender.base.states import ENDED_RUNS, STORED_RUNS, TaskState
from locktender.store.protocol import RunLabel

log: logging.Logger = logging.getLogger(__name__)
Row = Sequence[Any]

_TAGS = 6

read_tags: Callable[[bytes | str], dict[str, str]] = msgspec.json.Decoder(dict[str, str]).decode
_slots = msgspec.json.Decoder(dict[str, int]).decode
encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
_worker = msgspec.json.Decoder(WorkerRow).decode
_FAULTS = (msgspec.MsgspecError, UnicodeError, TypeError)
"""What a decoder raises for bytes that it cannot read, and for values that are not bytes."""
_provision_status = msgspec.json.Decoder(ProvisionStatus).decode
decode_failure: Callable[[bytes | str], Failure] = msgspec.json.Decoder(Failure).decode
_request = msgspec.json.Decoder(Request).decode
_rules = msgspec.json.Decoder(tuple[str, ...]).decode


def decode_tags(tags: bytes | str) -> dict[str, str]:
    """As `read_tags`, for who handles many runs at once: unreadable tags count as none, and their run is held."""
    try:
        return read_tags(tags)
    except _FAULTS:
        return {}


def run_labels(rows: Iterable[Row]) -> dict[int, RunLabel]:
    """From (seq, id, flow, tags)."""
    return {seq: RunLabel(run, flow, decode_tags(tags)) for seq, run, flow, tags in rows}


def read_keeps(keeps: object, limits: Limits) -> tuple[str, ...]:
    """The limits of tags at which a run keeps its place; where that cannot be read, all of them."""
    if keeps is None:
        return ()
    try:
        return _rules(cast("str", keeps))
    except _FAULTS:
        return tuple(rule.name for rule in limits.tags)


def kept_places(rows: Iterable[Row], limits: Limits) -> list[KeptPlace]:
    return [
        KeptPlace(run, id_, decode_tags(tags), read_keeps(keeps, limits), started_at)
        for run, id_, tags, keeps, started_at in rows
    ]


def keeps_text(rules: Sequence[str]) -> str:
    return msgspec.json.encode(rules).decode()


def announced_flows(rows: Iterable[Row]) -> list[AnnouncedFlow]:
    """Flows from (name, body); one that cannot be read is left out, and announced again by the next worker."""
    found: list[AnnouncedFlow] = []
    for name, body in rows:
        try:
            found.append(read_flow(body))
        except _FAULTS as error:
            log.warning("failed to read the announcement of flow %r: %s", name, error)
    return found


def slots_held(rows: Iterable[Row]) -> dict[str, int]:
    """Slots in use per pool, from (what tasks hold, how many of them do)."""
    found: dict[str, int] = {}
    for held, count in rows:
        try:
            slots = _slots(held)
        except _FAULTS:
            continue
        for pool, used in slots.items():
            found[pool] = found.get(pool, 0) + used * count
    return found


def encode_tags(tags: Mapping[str, str]) -> str:
    """The same tags always have the same text: rows are grouped by it."""
    return encode(dict(sorted(tags.items()))).decode()


def tag_pair(tags: Mapping[str, str]) -> str:
    """The longest pair as it stands in the text of `tags`: what lacks it need not be parsed."""
    return max((encode_tags({key: tags[key]})[1:-1] for key in tags), key=len, default="")


MAX_NUMBER: Final = 2**57
"""No number in a row but a token is larger. As an instant it is the year 6536, so what is added to it fits too."""
_NONE: frozenset[type] = frozenset({type(None)})
_INT: frozenset[type] = frozenset({int})
_TEXT: frozenset[type] = frozenset({str})
_BYTES: frozenset[type] = frozenset({bytes})
_RUN_COLUMNS: tuple[tuple[str, frozenset[type], object], ...] = (
    ("seq", _INT, 0),
    ("id", _TEXT, ""),
    ("flow", _TEXT, ""),
    ("graph", _TEXT, ""),
    ("params", _BYTES, b"{}"),
    ("consts", _BYTES, b"[]"),
    ("tags", _TEXT, "{}"),
    ("priority", _INT, 0),
    ("key", _TEXT | _NONE, None),
    ("kind", _TEXT, "flow"),
    ("generation", _INT, 0),
    ("state", _TEXT, ""),
    ("verdict", _TEXT | _NONE, None),
    ("lane", _INT, 0),
    ("waits_for", _INT | _NONE, None),
    ("queued_at", _INT, 0),
    ("started_at", _INT, 0),
    ("ended_at", _INT, 0),
    ("deadline_at", _INT | _NONE, None),
    ("queue_timeout_us", _INT | _NONE, None),
    ("dispatch_deadline_us", _INT | _NONE, None),
    ("output", _BYTES | _NONE, None),
    ("error", _BYTES | _NONE, None),
    ("trace", _TEXT | _NONE, None),
)
"""Each column in the order of `RunRow`, with the types it may have and what stands for a value that is wrong."""
_PRIORITY = 7
_WORDS: tuple[tuple[int, frozenset[str | None]], ...] = (
    (9, frozenset({"flow", "hold"})),
    (11, STORED_RUNS),
    (12, frozenset({None, *ENDED_RUNS})),
)
_TASK_STATES: frozenset[str] = frozenset(TaskState)


def runs(rows: Iterable[Row]) -> list[RunRow]:
    return [run(row) for row in rows]


def run(row: Row) -> RunRow:
    """Never fails: a reader of many runs gets all of them. `unreadable` says what is wrong."""
    values: list[Any] = list(row)
    fault = ""
    for index, (name, types, harmless) in enumerate(_RUN_COLUMNS):
        value = values[index]
        out_of_range = type(value) is int and index != _PRIORITY and not 0 <= value <= MAX_NUMBER
        if out_of_range or type(value) not in types:
            values[index] = harmless
            fault = fault or _fault(name, value)
    if not values[0]:
        fault = fault or _fault("seq", 0)
    if not -names.MAX_PRIORITY <= values[_PRIORITY] <= names.MAX_PRIORITY:
        fault = fault or _fault("priority", values[_PRIORITY])
        values[_PRIORITY] = 0
    for index, words in _WORDS:
        if values[index] not in words:
            name, _, harmless = _RUN_COLUMNS[index]
            fault = fault or _fault(name, values[index])
            # A wrong state is kept: it is what a person must see.
            values[index] = values[index] if name == "state" else harmless
    try:
        values[_TAGS] = read_tags(values[_TAGS])
    except (msgspec.MsgspecError, UnicodeError):
        fault = fault or _fault("tags", values[_TAGS])
        values[_TAGS] = {}
    return RunRow(*values, unreadable=fault)


def numbered(rows: Iterable[RunRow]) -> list[RunRow]:
    """Without runs whose number cannot be read: nothing of them can be written, not even that they are held."""
    found: list[RunRow] = []
    for row in rows:
        if row.seq:
            found.append(row)
        else:
            log.error("run %s is left out: %s", row.id, row.unreadable)
    return found


def _fault(column: str, value: object) -> str:
    return f"its {column} cannot be read: {value!r:.80}"


def task_fault(row: TaskRow, nodes: int) -> str:
    """What of a task's row no leader can use; empty: nothing. `nodes`: how many its graph has."""
    numbers = (row.node, row.attempt, row.tries, row.abandons, row.offers, *row[14:])
    if not _INT.issuperset(map(type, numbers)) or min(numbers) < 0 or max(numbers) > MAX_NUMBER:
        first = next(each for each in zip(_TASK_NUMBERS, numbers, strict=True) if wrong(each[1]))
        return _task_fault(row, *first)
    if type(row.token) is not int or row.token < 0:
        return _task_fault(row, "token", row.token)
    if row.node >= nodes:
        return _task_fault(row, "node", row.node)
    if type(row.idx) is not int or not -1 <= row.idx < MAX_TASKS_PER_RUN:
        return _task_fault(row, "idx", row.idx)
    if row.state not in _TASK_STATES:
        return _task_fault(row, "state", row.state)
    if row.worker is not None and type(row.worker) is not str:
        return _task_fault(row, "worker", row.worker)
    for name, value in (
        ("held", row.held),
        ("input", row.input),
        ("output", row.output),
        ("error", row.error),
    ):
        if value is not None and type(value) is not bytes:
            return _task_fault(row, name, value)
    return ""


_TASK_NUMBERS = ("node", "attempt", "tries", "abandons", "offers", *TaskRow._fields[14:])


def shown_task(row: TaskRow) -> TaskRow:
    """`row` with harmless numbers in the place of those that cannot be read: a held run is shown all the same."""
    if not task_fault(row, MAX_TASKS_PER_RUN):
        return row
    shown = {name: 0 for name in _TASK_NUMBERS if wrong(getattr(row, name))}
    if "node" in shown:
        shown["node"] = -1
    if wrong(row.idx):
        shown["idx"] = -1
    return row._replace(**shown)


def cached_results(rows: Iterable[Row]) -> list[CachedResult]:
    """Results that are kept. One that cannot be read is none: its task runs."""
    found = [CachedResult(*row) for row in rows]
    return [
        each
        for each in found
        if not any(map(wrong, each[4:8])) and type(each.output) is bytes and type(each.key) is str
    ]


def wrong(value: object) -> bool:
    """Whether it is not a number that a row can have."""
    return type(value) is not int or not 0 <= value <= MAX_NUMBER


def _task_fault(row: TaskRow, column: str, value: object) -> str:
    return f"the {column} of its task {row.id} cannot be read: {value!r:.80}"


def lingers(rows: Iterable[Row]) -> list[Linger]:
    """Without those that cannot be read: their slots are free as soon as the holder's lease has passed."""
    found: list[Linger] = []
    for row in rows:
        linger = Linger(*row)
        numbers = (linger.task, linger.token, linger.slots, linger.until)
        if any(map(wrong, numbers)) or type(linger.pool) is not str:
            log.warning("failed to read slots that a dead worker held: %r", linger)
        else:
            found.append(linger)
    return found


def buckets(rows: Iterable[Row]) -> list[Bucket]:
    """One that cannot be read counts as empty: its rate grants nothing before its burst has been made up for."""
    found: list[Bucket] = []
    for pool, tat in rows:
        if type(pool) is not str:
            log.warning("failed to read a rate: no pool is called %r", pool)
            continue
        if wrong(tat):
            log.warning("failed to read the rate of pool %s: %r; it counts as used up", pool, tat)
        found.append(Bucket(pool, MAX_NUMBER if wrong(tat) else tat))
    return found


def lanes(rows: Iterable[Row]) -> list[int]:
    """Without those that cannot be read: `misplaced` has their runs."""
    return [lane for (lane,) in rows if not wrong(lane)]


OLDEST: Final = 10_000
"""Of so many queued runs a new leader asks whether the queue has them: one that it lacks grows old."""


def misplaced(rows: Iterable[Row]) -> list[RunRow]:
    """Queued runs whose lane in the queue cannot be read, or that the queue does not have."""
    why = "its place in the queue cannot be read"
    return [msgspec.structs.replace(each, unreadable=each.unreadable or why) for each in runs(rows)]


def workers(rows: Iterable[Row]) -> list[WorkerRow]:
    """Rows of (id, body, since, lease_until, unanswered, asked_again_at). Never fails, as `run`."""
    found: list[WorkerRow] = []
    for id_, body, *numbers in rows:
        row = known_worker(body)
        fault = "" if row is not None else _fault("description", body)
        fields = dict(zip(_WORKER_NUMBERS, (number or 0 for number in numbers), strict=True))
        for name, value in fields.items():
            if wrong(value):
                fault = fault or _fault(name, value)
                fields[name] = 0
        row = row or WorkerRow(id_, "", 0, "", {}, 0, 0)
        found.append(msgspec.structs.replace(row, id=id_, unreadable=fault, **fields))
    return found


_WORKER_NUMBERS = ("since", "lease_until", "unanswered", "asked_again_at")


def known_worker(body: bytes) -> WorkerRow | None:
    """A worker as it described itself; None: that cannot be read."""
    try:
        return _worker(body)
    except _FAULTS:
        return None


def life(worker: str, lease_until: Any, lease_us: Any, proof: Proof) -> WorkerLife:
    """What cannot be read counts as a lease that has passed, and as one of a minute."""
    lease_us = _MINUTE_US if wrong(lease_us) else lease_us
    return WorkerLife(worker, lease_end(lease_until), lease_us, proof)


def lease_end(lease_until: Any) -> int:
    return lease_until if type(lease_until) is int else 1


_MINUTE_US = 60_000_000


def requests(rows: Iterable[Row]) -> list[StoredRequest]:
    """One that cannot be read is None: who reads many gets all of them."""
    return [
        StoredRequest(seq, None if wrong(taken) else _read_request(body), taken)
        for seq, body, taken in rows
    ]


def _read_request(body: bytes) -> Request | None:
    try:
        return _request(body)
    except _FAULTS:
        return None


def asked_workers(rows: Iterable[Row]) -> list[AskedWorker]:
    """Without those that cannot be read: the leader does not wait for them."""
    found: list[AskedWorker] = []
    for row in rows:
        asked = AskedWorker(*row)
        numbers = (asked.asked_at, asked.expires_at, asked.joined_at)
        if any(map(wrong, numbers)) or type(asked.body) is not bytes:
            log.warning("failed to read a worker that was asked for: %r", asked)
        else:
            found.append(asked)
    return found


def read_provision_status(body: bytes) -> ProvisionStatus | None:
    """What a provisioner said last; None: it cannot be read."""
    try:
        return _provision_status(body)
    except _FAULTS:
        return None
