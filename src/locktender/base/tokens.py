"""Tokens of the HTTP API as they are stored, and what their scopes mean."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

SCOPES: Final = ("read", "submit", "operate", "admin")
"""Each includes those before it: who may operate may also submit, and who may submit may also read."""
PREFIX: Final = "lt"
ID_CHARACTERS: Final = 10
MAX_TEXT: Final = 200


class TokenRights(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a token allows, and who made it."""

    scopes: tuple[str, ...] = ()
    tags: dict[str, str] = {}
    """Only runs with all of these tags are its; none: every run."""
    who: str = ""


class TokenRow(msgspec.Struct, frozen=True):
    """A token, or a browser's session that was opened with one."""

    id: str
    name: str
    parent: str | None
    """Of a session: the token it was opened with. It ends with it, and has its rights."""
    hash: bytes
    rights: TokenRights
    created_at: int
    expires_at: int | None
    used_at: int | None
    revoked_at: int | None
    revoked_by: str | None
    made_with: str | None
    """The token by which it was made: it is revoked with that one."""
    read_at: int
    """The store's time when this was read: tokens expire by that clock."""

    @property
    def state(self) -> str:
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= self.read_at:
            return "expired"
        return "valid"


def implied(scopes: Iterable[str]) -> tuple[str, ...]:
    """With those that they include, in order."""
    most = max((SCOPES.index(each) for each in scopes if each in SCOPES), default=-1)
    return SCOPES[: most + 1]


def token_text(token: str, secret: str) -> str:
    """As its owner keeps it: `lt_ID_SECRET`."""
    return f"{PREFIX}_{token}_{secret}"


def token_parts(text: str) -> tuple[str, str] | None:
    """Id and secret of what was sent; None: that is not a token."""
    prefix, _, rest = text.partition("_")
    token, _, secret = rest.partition("_")
    plain = len(text) <= MAX_TEXT and text.isascii()
    return (token, secret) if plain and prefix == PREFIX and token and secret else None


def hash_of(secret: str) -> bytes:
    # A slow hash is for passwords, which can be guessed. A secret of 256 random bits cannot.
    return hashlib.sha256(secret.encode()).digest()


def matches(row: TokenRow | None, secret: str) -> bool:
    """Takes the same time whether there is such a token or not, and wherever the secret differs."""
    wanted = bytes(32) if row is None else row.hash
    return hmac.compare_digest(hash_of(secret), wanted) and row is not None


_read_rights: Callable[[bytes], TokenRights] = msgspec.json.Decoder(TokenRights).decode
write_rights: Callable[[TokenRights], bytes] = msgspec.json.Encoder().encode


def read_rights(raw: bytes) -> TokenRights:
    """What cannot be read allows nothing."""
    try:
        return _read_rights(raw)
    except (msgspec.MsgspecError, UnicodeError):
        return TokenRights()
