"""Tokens of the HTTP API in a SQLite file.

A row has the hash of a secret, never the secret: who reads the table can ask the API for nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from locktender.base.tokens import TokenRow, write_rights
from locktender.store.protocol import (
    FORGET_KEYS_US,
    FORGET_SESSIONS_US,
    AddToken,
    TokenKeeping,
    token_row,
)
from locktender.store.sqlite.session import SqliteSession, listed

T = TypeVar("T")


class SqliteTokens(TokenKeeping):
    """A part of `SqliteStore`."""

    def _write(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    async def add_token(self, token: AddToken) -> bool:
        return await self._write(lambda tx: _add(tx, token))

    async def tokens(self, ids: Sequence[str] | None = None) -> list[TokenRow]:
        return await self._query(lambda tx: _tokens(tx, ids))

    async def revoke_token(self, token: str, who: str) -> bool:
        return await self._write(lambda tx: tx.run("token_revoke", tx.now(), who, token) > 0)

    async def use_tokens(self, ids: Sequence[str]) -> None:
        await self._write(lambda tx: tx.run("token_use", tx.now(), listed(ids)))

    async def claim_keys(self, bodies: Mapping[str, bytes]) -> dict[str, bytes]:
        return await self._write(lambda tx: _claim(tx, bodies))


def _claim(tx: SqliteSession, bodies: Mapping[str, bytes]) -> dict[str, bytes]:
    now = tx.now()
    tx.run("idempotency_forget", now - FORGET_KEYS_US)
    tx.each("idempotency_claim", [(key, body, now) for key, body in bodies.items()])
    return {key: bytes(body) for key, body in tx.all("idempotency_get", listed(bodies))}


def _add(tx: SqliteSession, token: AddToken) -> bool:
    now = tx.now()
    if token.parent is not None:
        tx.run("token_forget", now - FORGET_SESSIONS_US)
    until = None if token.expires_us is None else now + token.expires_us
    tx.run(
        "token_add",
        token.id,
        token.name,
        token.parent,
        token.hash,
        write_rights(token.rights),
        now,
        until,
        token.made_with,
    )
    return bool(tx.all("token_get", listed([token.id]), now))


def _tokens(tx: SqliteSession, ids: Sequence[str] | None) -> list[TokenRow]:
    now = tx.now()
    rows = tx.all("token_list", now) if ids is None else tx.all("token_get", listed(ids), now)
    return [token_row(row) for row in rows]
