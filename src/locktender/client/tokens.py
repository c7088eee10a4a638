"""Namespace `client.tokens`: who may ask the HTTP API, and for what."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from locktender.base import names
from locktender.base.clock import SECOND
from locktender.base.durations import Duration, microseconds
from locktender.base.errors import InvalidInput, NotFound
from locktender.base.names import did_you_mean
from locktender.base.tokens import (
    ID_CHARACTERS,
    SCOPES,
    TokenRights,
    TokenRow,
    hash_of,
    implied,
    token_text,
)
from locktender.base.tracebacks import public
from locktender.client.bridge import Bridge
from locktender.client.core import Core
from locktender.client.views import instant, moment
from locktender.store.protocol import AddToken

_ID_LETTERS = "0123456789abcdefghijkmnpqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token of the HTTP API. Its secret is not stored."""

    id: str
    """What follows `lt_` in the token."""
    name: str
    """Recorded with every change that is made with it."""
    state: str
    """`valid`, `expired` or `revoked`."""
    scopes: Sequence[str]
    """`read`, `submit`, `operate`, `admin`: each includes those before it."""
    tags: Mapping[str, str]
    """It sees, submits and changes only what has all of these tags; none: everything."""
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    used_at: datetime | None
    """When it was last used, give or take a minute."""
    revoked_at: datetime | None
    revoked_by: str | None
    made_with: str | None = None
    """Id of the token by which it was made: it expires and is revoked with that one at the latest."""

    @classmethod
    def of(cls, row: TokenRow) -> TokenInfo:
        """The same from a row of the store."""
        return cls(
            id=row.id,
            name=row.name,
            state=row.state,
            scopes=implied(row.rights.scopes),
            tags=row.rights.tags,
            created_at=instant(row.created_at),
            created_by=row.rights.who,
            expires_at=moment(row.expires_at),
            used_at=moment(row.used_at),
            revoked_at=moment(row.revoked_at),
            revoked_by=row.revoked_by,
            made_with=row.made_with,
        )


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A token that was made this moment: the only time that it is shown."""

    token: str = field(repr=False)
    info: TokenInfo


TokenInfos = list[TokenInfo]


@public
class AsyncTokens:
    """Namespace `client.tokens`: tokens of the HTTP API."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        tags: Mapping[str, str | int | bool] | None = None,
        expires: Duration | None = None,
    ) -> CreatedToken:
        """Makes a token. It is shown this once; the store has its hash.

        name     recorded with every change that is made with it
        scopes   "read", "submit", "operate", "admin": each includes those before it
        tags     it sees, submits and changes only what has all of these; default everything
        expires  from now on, by the store's clock; default never

        One that is made with a token over HTTP expires and is revoked with that token at the latest.
        """
        core = self._core
        core.guard.check()
        label = names.name(name, "name")
        rights = TokenRights(checked_scopes(scopes), names.tags(tags), core.who)
        until = None if expires is None else microseconds(expires, "expires")
        made, secret = _new_id(), secrets.token_urlsafe(32)
        row = AddToken(made, label, hash_of(secret), rights, until, made_with=core.token)
        if not await core.store.add_token(row):
            if core.token and [each.state for each in await core.store.tokens([core.token])] != [
                "valid"
            ]:
                raise InvalidInput(
                    "the token of this request was revoked or has expired.", field="token"
                )
            raise InvalidInput(
                f"there is a token {label!r} already.",
                field="name",
                got=label,
                hint=f"Name it otherwise, or first: locktender tokens revoke {label}",
            )
        [stored] = await core.store.tokens([made])
        return CreatedToken(token_text(made, secret), TokenInfo.of(stored))

    async def list(self) -> TokenInfos:
        """All tokens by name, also those that expired or were revoked."""
        self._core.guard.check()
        return [TokenInfo.of(row) for row in await self._core.store.tokens()]

    async def revoke(self, token: str) -> TokenInfo:
        """Takes a token away, by its id or its name, with those that were made with it.

        Servers refuse them within two seconds. Raises `NotFound`.
        """
        core = self._core
        core.guard.check()
        wanted = names.text(token, "token")
        rows = await core.store.tokens()
        by_name = [row for row in rows if row.name == wanted and row.revoked_at is None]
        found = [row for row in rows if row.id == wanted] or by_name
        if not found:
            known = [row.name for row in rows if row.revoked_at is None]
            raise NotFound(
                f"there is no token {wanted!r}.",
                field="token",
                got=wanted,
                hint=did_you_mean(wanted, known) or "locktender tokens list shows what there is.",
            )
        await core.store.revoke_token(found[0].id, core.who)
        [row] = await core.store.tokens([found[0].id])
        return TokenInfo.of(row)


@public
class SyncTokens:
    """Namespace `client.tokens`: tokens of the HTTP API."""

    def __init__(self, bridge: Bridge, tokens: AsyncTokens) -> None:
        self._bridge = bridge
        self._tokens = tokens

    def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        tags: Mapping[str, str | int | bool] | None = None,
        expires: Duration | None = None,
    ) -> CreatedToken:
        """Makes a token. It is shown this once; the store has its hash.

        name     recorded with every change that is made with it
        scopes   "read", "submit", "operate", "admin": each includes those before it
        tags     it sees, submits and changes only what has all of these; default everything
        expires  from now on, by the store's clock; default never
        """
        return self._bridge.call(self._tokens.create(name, scopes, tags=tags, expires=expires))

    def list(self) -> TokenInfos:
        """All tokens by name, also those that expired or were revoked."""
        return self._bridge.call(self._tokens.list())

    def revoke(self, token: str) -> TokenInfo:
        """Takes a token away, by its id or its name, with those that were made with it.

        Servers refuse them within two seconds. Raises `NotFound`.
        """
        return self._bridge.call(self._tokens.revoke(token))


def checked_scopes(given: Sequence[str]) -> tuple[str, ...]:
    """What a token may do, with all that is included."""
    wanted = [given] if isinstance(given, str) else list(given)
    for each in wanted:
        if each not in SCOPES:
            raise InvalidInput(
                f"a scope is one of {', '.join(SCOPES)}.",
                field="scope",
                got=each,
                hint=did_you_mean(each, SCOPES),
            )
    if not wanted:
        raise InvalidInput(
            "say what the token may do.", field="scope", hint=f"One of {', '.join(SCOPES)}."
        )
    return implied(wanted)


def _new_id() -> str:
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(ID_CHARACTERS))


async def read_tokens(core: Core, ids: Sequence[str]) -> dict[str, TokenRow]:
    """By id; of sessions also the tokens they were opened with."""
    return {row.id: row for row in await core.store.tokens(ids)}


async def note_use(core: Core, ids: Sequence[str]) -> None:
    """Stores that these tokens are in use."""
    await core.store.use_tokens(ids)


async def claim_keys(core: Core, bodies: Mapping[str, bytes]) -> dict[str, bytes]:
    """Idempotency-Key → the body that came first with it."""
    return await core.store.claim_keys(bodies)


async def open_session(core: Core, token: TokenRow, seconds: float) -> str:
    """What a browser's cookie holds. The session has the rights of the token, and ends with it."""
    made, secret = _new_id(), secrets.token_urlsafe(32)
    lasts = round(seconds * SECOND)
    await core.store.add_token(
        AddToken(made, token.name, hash_of(secret), TokenRights(), lasts, token.id)
    )
    return token_text(made, secret)


async def end_session(core: Core, session: str) -> None:
    """By its id."""
    await core.store.revoke_token(session, "logout")
