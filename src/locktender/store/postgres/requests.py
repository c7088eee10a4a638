"""Requests to the leader, and its answers. A command that only asks loads this alone of what writes."""

from __future__ import annotations

from locktender.base.model import Request
from locktender.store.decode import encode
from locktender.store.postgres.composed_sql import Parts
from locktender.store.postgres.session import PostgresSession


async def ask(tx: PostgresSession, requests: list[Request]) -> None:
    parts = Parts()
    parts.add("now", alias="clock")
    parts.add("open_fence", alias="fence")
    parts.add("request_add", [encode(request).decode() for request in requests])
    parts.add("wake", *tx.hint("ask"))
    await tx.compose(parts)


async def answer_to(tx: PostgresSession, question: str) -> bytes | None:
    row = await tx.one("answer_get", question)
    return None if row is None else bytes(row[0])
