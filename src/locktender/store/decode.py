"""JSON of the store's rows: its one encoder, a decoder per type, and rows as values of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from locktender.base.model import (
    AskedWorker,
    Failure,
    Request,
    RunRow,
    Said,
    StoredRequest,
    WorkerRow,
)

Row = Sequence[Any]

_TAGS = 6

decode_tags: Callable[[bytes | str], dict[str, str]] = msgspec.json.Decoder(dict[str, str]).decode
encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
decode_worker: Callable[[bytes | str], WorkerRow] = msgspec.json.Decoder(WorkerRow).decode
decode_said: Callable[[bytes | str], Said] = msgspec.json.Decoder(Said).decode
decode_failure: Callable[[bytes | str], Failure] = msgspec.json.Decoder(Failure).decode
_request = msgspec.json.Decoder(Request).decode


def encode_tags(tags: Mapping[str, str]) -> str:
    """The same tags always have the same text: rows are grouped by it."""
    return encode(dict(sorted(tags.items()))).decode()


def runs(rows: Iterable[Row]) -> list[RunRow]:
    return [run(row) for row in rows]


def run(row: Row) -> RunRow:
    values: list[Any] = list(row)
    values[_TAGS] = decode_tags(values[_TAGS])
    return RunRow(*values)


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
    return [StoredRequest(seq, _request(body)) for seq, body in rows]


def asked_workers(rows: Iterable[Row]) -> list[AskedWorker]:
    return [AskedWorker(*row) for row in rows]
