"""Tokens of the HTTP API: stored as hashes, found by id, revoked.

A browser's session is a row of the same kind: it has a token as its parent, the
rights of that token and no more, and ends with it. Rows are read with the store's
time, so that every process agrees on when a token expires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from locktender.base.tokens import TokenRights, TokenRow, read_rights
from locktender.store.protocol.base import StoreBase


class AddToken(msgspec.Struct, frozen=True):
    """A token, or a session of the token `parent`."""

    id: str
    name: str
    hash: bytes
    rights: TokenRights
    """Of a session: nothing, its token has them."""
    expires_us: int | None = None
    """From now on; None: never."""
    parent: str | None = None
    made_with: str | None = None
    """The token by which this one was made: it expires and is revoked with that one at the latest."""


class TokenKeeping(StoreBase, Protocol):
    async def add_token(self, token: AddToken) -> bool:
        """False: a token that was not revoked has this name, or the one it is made with has no rights any more.
        Sessions need no name of their own.

        A repetition with the same id changes nothing.
        """
        ...

    async def tokens(self, ids: Sequence[str] | None = None) -> list[TokenRow]:
        """These and, of sessions, the tokens they were opened with; None: all tokens, no sessions, by name."""
        ...

    async def revoke_token(self, token: str, who: str) -> bool:
        """Whether it was valid or expired before. Its sessions and tokens made with it end with it."""
        ...

    async def use_tokens(self, ids: Sequence[str]) -> None:
        """Stores that they were used now."""
        ...

    async def claim_keys(self, bodies: Mapping[str, bytes]) -> dict[str, bytes]:
        """Key → the body that was claimed first for it, these or another's. They are kept for five minutes."""
        ...


FORGET_KEYS_US = 300 * 1_000_000
FORGET_SESSIONS_US = 24 * 3_600 * 1_000_000
"""A session that expired so long ago is removed when another is opened."""


def token_row(row: Sequence[Any]) -> TokenRow:
    """Of the columns in the order of the table, and the store's time."""
    token, name, parent, hashed, body, *times = row
    return TokenRow(token, name, parent, bytes(hashed), read_rights(bytes(body)), *times)
