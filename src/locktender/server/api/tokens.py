"""Tokens: who may ask, as the API itself shows and changes it."""

from __future__ import annotations

import msgspec

from locktender.base.errors import NotFound
from locktender.base.tokens import SCOPES
from locktender.client.tokens import CreatedToken, TokenInfo
from locktender.server.api.bodies import TokenBody
from locktender.server.api.routing import ApiCall, ApiRoute, Reply
from locktender.server.api.tenancy import own_key


class TokenPage(msgspec.Struct, frozen=True):
    """Tokens by name."""

    tokens: list[TokenInfo]


class Myself(msgspec.Struct, frozen=True):
    """Who asks, and what they may do."""

    name: str
    scopes: list[str]
    tags: dict[str, str]
    """Only what has all of these tags is theirs; none: everything."""


async def who_am_i(call: ApiCall) -> Reply:
    principal = call.principal
    scopes = [each for each in SCOPES if each in principal.scopes]
    return Reply(Myself(principal.name, scopes, dict(principal.tags)))


async def list_tokens(call: ApiCall) -> Reply:
    found = await call.client.tokens.list()
    return Reply(TokenPage(call.shown(found, lambda each: each.tags)))


async def create_token(call: ApiCall) -> Reply:
    body: TokenBody = call.body
    made = await call.client.tokens.create(
        # Names are one space: that of another tenant must not be found out by trying.
        own_key(call.principal, body.name) or body.name,
        body.scopes,
        tags=call.only(body.tags),
        expires=body.expires,
    )
    return Reply(made, 201)


async def revoke_token(call: ApiCall) -> Reply:
    wanted = call.path("token")
    found = call.shown(await call.client.tokens.list(), lambda each: each.tags)
    known = [each for each in found if each.id == wanted]
    known += [each for each in found if each.name == wanted and each.revoked_at is None]
    if not known:
        raise NotFound(f"there is no token {wanted!r}.", field="token", got=wanted)
    return Reply(await call.client.tokens.revoke(known[0].id))


ROUTES = (
    ApiRoute("GET", "/whoami", "read", who_am_i, "Who asks, and what they may do", Myself, tenant="same"),
    ApiRoute("GET", "/tokens", "admin", list_tokens, "Tokens", TokenPage, tenant="own"),
    ApiRoute(
        "POST", "/tokens", "admin", create_token, "Make a token; its text is shown this once", CreatedToken,
        201, TokenBody, refuses=(413, 415, 422), tenant="own",
        example={"name": "ci", "scopes": ["submit"], "tags": {"tenant": "acme"}, "expires": "30d"},
    ),
    ApiRoute(
        "DELETE", "/tokens/{token}", "admin", revoke_token, "Take a token away, by its id or its name", TokenInfo,
        refuses=(404,), tenant="own",
    ),
)  # fmt: skip
