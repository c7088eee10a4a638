"""JSON of the store's rows: its one encoder, a decoder per type, and rows as values of the protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from locktender.base import names
from locktender.base.changes import Linger, TaskRow
from locktender.base.ids import MAX_TASKS_PER_RUN
from locktender.base.model import (
    AskedWorker,
    Failure,
    ProvisionStatus,
    Request,
    RunRow,
    StoredRequest,
    WorkerRow,
)
from locktender.base.states import TERMINAL_RUNS, RunState, TaskState

log: logging.Logger = logging.getLogger(__name__)
Row = Sequence[Any]

_TAGS = 6

read_tags: Callable[[bytes | str], dict[str, str]] = msgspec.json.Decoder(dict[str, str]).decode
_slots = msgspec.json.Decoder(dict[str, int]).decode
encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
decode_worker: Callable[[bytes | str], WorkerRow] = msgspec.json.Decoder(WorkerRow).decode
decode_provision_status: Callable[[bytes | str], ProvisionStatus] = msgspec.json.Decoder(
    ProvisionStatus
).decode
decode_failure: Callable[[bytes | str], Failure] = msgspec.json.Decoder(Failure).decode
_request = msgspec.json.Decoder(Request).decode


def decode_tags(tags: bytes | str) -> dict[str, str]:
    """As `read_tags`, for who handles many runs at once: what cannot be read is no tags, and its run is held."""
    try:
        return read_tags(tags)
    except (msgspec.MsgspecError, UnicodeError, TypeError):
        return {}


def slots_held(rows: Iterable[Row]) -> dict[str, int]:
    """Slots in use per pool, from (what tasks hold, how many of them do)."""
    found: dict[str, int] = {}
    for held, count in rows:
        try:
            slots = _slots(held)
        except (msgspec.MsgspecError, UnicodeError, TypeError):
            continue
        for pool, used in slots.items():
            found[pool] = found.get(pool, 0) + used * count
    return found


def encode_tags(tags: Mapping[str, str]) -> str:
    """The same tags always have the same text: rows are grouped by it."""
    return encode(dict(sorted(tags.items()))).decode()


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
    (11, frozenset(RunState)),
    (12, frozenset({None, *TERMINAL_RUNS})),
)
_TASK_STATES: frozenset[str] = frozenset(TaskState)


def runs(rows: Iterable[Row]) -> list[RunRow]:
    return [run(row) for row in rows]


def run(row: Row) -> RunRow:
    """Never fails: whoever reads rows of many runs gets all of them. What is wrong is said in `unreadable`."""
    values: list[Any] = list(row)
    fault = ""
    for index, (name, types, harmless) in enumerate(_RUN_COLUMNS):
        value = values[index]
        out_of_range = type(value) is int and index != _PRIORITY and not 0 <= value <= MAX_NUMBER
        if out_of_range or type(value) not in types:
            values[index] = harmless
            fault = fault or _fault(name, value)
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


def _fault(column: str, value: object) -> str:
    return f"its {column} cannot be read: {value!r:.80}"


def task_fault(row: TaskRow, nodes: int) -> str:
    """What of a task's row no leader can use; empty: nothing. `nodes`: how many its graph has."""
    numbers = (row.node, row.attempt, row.tries, row.abandons, row.offers, *row[14:])
    if not _INT.issuperset(map(type, numbers)) or min(numbers) < 0 or max(numbers) > MAX_NUMBER:
        wrong = next(each for each in zip(_TASK_NUMBERS, numbers, strict=True) if _wrong(each[1]))
        return _task_fault(row, *wrong)
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
    wrong = {name: 0 for name in _TASK_NUMBERS if _wrong(getattr(row, name))}
    if "node" in wrong:
        wrong["node"] = -1
    if _wrong(row.idx):
        wrong["idx"] = -1
    return row._replace(**wrong)


def _wrong(value: object) -> bool:
    return type(value) is not int or not 0 <= value <= MAX_NUMBER


def _task_fault(row: TaskRow, column: str, value: object) -> str:
    return f"the {column} of its task {row.id} cannot be read: {value!r:.80}"


def lingers(rows: Iterable[Row]) -> list[Linger]:
    """Without those that cannot be read: their slots are free as soon as the holder's lease has passed."""
    found: list[Linger] = []
    for row in rows:
        linger = Linger(*row)
        if _wrong(linger.slots) or _wrong(linger.until) or type(linger.pool) is not str:
            log.warning("failed to read slots that a dead worker held: %r", linger)
        else:
            found.append(linger)
    return found


def workers(rows: Iterable[Row]) -> list[WorkerRow]:
    """Rows of (body, since, lease_until, unanswered, asked_again_at)."""
    return [
        msgspec.structs.replace(
            decode_worker(body),
            since=since,
            lease_until=lease_until,
            unanswered=unanswered or 0,
            asked_again_at=until or 0,
        )
        for body, since, lease_until, unanswered, until in rows
    ]


def requests(rows: Iterable[Row]) -> list[StoredRequest]:
    """One that cannot be read is None: who reads many gets all of them."""
    return [StoredRequest(seq, _read_request(body), taken) for seq, body, taken in rows]


def _read_request(body: bytes) -> Request | None:
    try:
        return _request(body)
    except (msgspec.MsgspecError, UnicodeError, TypeError):
        return None


def asked_workers(rows: Iterable[Row]) -> list[AskedWorker]:
    return [AskedWorker(*row) for row in rows]
