"""Tokens of the HTTP API in PostgreSQL.

A row has the hash of a secret, never the secret: who reads the table can ask the API for nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from locktender.base.tokens import TokenRow, write_rights
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import (
    FORGET_KEYS_US,
    FORGET_SESSIONS_US,
    AddToken,
    TokenKeeping,
    token_row,
)

T = TypeVar("T")


class PostgresTokens(TokenKeeping):
    """A part of `PostgresStore`."""

    def _write(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    async def add_token(self, token: AddToken) -> bool:
        return await self._write(lambda tx: _add(tx, token))

    async def tokens(self, ids: Sequence[str] | None = None) -> list[TokenRow]:
        return await self._query(lambda tx: _tokens(tx, ids))

    async def revoke_token(self, token: str, who: str) -> bool:
        return await self._write(lambda tx: _revoke(tx, token, who))

    async def use_tokens(self, ids: Sequence[str]) -> None:
        await self._write(lambda tx: tx.run("token_use", list(ids)))

    async def claim_keys(self, bodies: Mapping[str, bytes]) -> dict[str, bytes]:
        return await self._write(lambda tx: _claim(tx, bodies))


async def _claim(tx: PostgresSession, bodies: Mapping[str, bytes]) -> dict[str, bytes]:
    await tx.run("idempotency_forget", FORGET_KEYS_US)
    # Two transactions: the second sees what another process has claimed meanwhile.
    await tx.run("idempotency_claim", list(bodies), list(bodies.values()))
    return {row[0]: bytes(row[1]) for row in await tx.all("idempotency_get", list(bodies))}


async def _add(tx: PostgresSession, token: AddToken) -> bool:
    async with tx.transaction():
        if token.parent is not None:
            await tx.run("token_forget", FORGET_SESSIONS_US)
        await tx.run(
            "token_add",
            token.id,
            token.name,
            token.parent,
            token.hash,
            write_rights(token.rights),
            token.expires_us,
            token.made_with,
        )
        return bool(await tx.all("token_get", [token.id]))


async def _tokens(tx: PostgresSession, ids: Sequence[str] | None) -> list[TokenRow]:
    rows = await tx.all("token_list") if ids is None else await tx.all("token_get", list(ids))
    return [token_row(row) for row in rows]


async def _revoke(tx: PostgresSession, token: str, who: str) -> bool:
    async with tx.transaction():
        revoked = more = await tx.all("token_revoke", token, who)
        while more:
            # Others may have been made with one of these before its row was locked.
            more = await tx.all("token_revoke", token, who)
    return bool(revoked)
