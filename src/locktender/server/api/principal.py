"""Who asks: the one place where a request becomes a principal.

Without tokens everyone who reaches the address may do everything, so that
address must be loopback. A web page of a stranger reaches it too, through the
browser of somebody at this machine: by a name that was made to mean 127.0.0.1
(the `Host` header tells), or by a form or script of another origin (the
`Origin` header and the CSRF token tell).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol
from urllib.parse import urlsplit

from starlette.requests import Request

from locktender.server.api.answers import Forbidden, Unauthorized

Scope = Literal["public", "read", "submit", "operate", "admin"]
"""What a route asks of a principal. `public`: nothing."""
EVERY_SCOPE: frozenset[Scope] = frozenset({"public", "read", "submit", "operate", "admin"})
NOBODY_NAMED = "http"
"""Who changes something where no token is asked for, as the history has it."""
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
CSRF_HEADER = "x-csrf-token"
FORM_TYPES = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
"""What a page of any origin can send without asking first."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent the request: what they may do, and which runs are theirs."""

    name: str
    """Recorded with every change."""
    scopes: frozenset[Scope]
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Only runs with all of these tags are theirs; none: every run."""
    by: Literal["loopback", "bearer", "cookie"] = "loopback"
    """How the request says who it is. A browser sends a cookie by itself."""
    token: str | None = None
    """Its id. Names are given again when a token is revoked, ids are not."""

    @property
    def owner(self) -> str:
        """Whose an Idempotency-Key is."""
        return self.name if self.token is None else f"token\0{self.token}"

    def sees(self, tags: Mapping[str, str]) -> bool:
        """Whether a run with these tags is theirs."""
        return all(tags.get(key) == value for key, value in self.tags.items())

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    def check(self, scope: Scope) -> None:
        if not self.may(scope):
            raise Forbidden(
                f"this needs the scope {scope!r}.",
                field="scope",
                got=", ".join(sorted(self.scopes - {"public"})),
            )


ANYONE = Principal("anyone", frozenset({"public"}), {"": ""})
"""Who asks without a token: nothing is theirs."""


class NoToken(Unauthorized):
    """The request has neither token nor session."""


class Access(Protocol):
    """How a request becomes a principal, and whether it may change something."""

    async def resolve(self, request: Request) -> None:
        """Called once, before `identify`."""
        ...

    def identify(self, request: Request) -> Principal:
        """Raises `Unauthorized` (401) or `Forbidden` (403)."""
        ...

    def csrf(self, request: Request) -> str:
        """The token that forms and scripts of this session send with a change; "" where none is needed."""
        ...

    def check_change(self, request: Request, principal: Principal, csrf: str | None = None) -> None:
        """Raises `Forbidden` for a change by another page. `csrf`: the field of a form that has one."""
        ...

    async def until_ended(self, request: Request) -> None:
        """Returns when the principal of a request has no access any more."""
        ...

    async def close(self) -> None: ...


class LoopbackAccess:
    """Everyone on this machine, with every scope."""

    def __init__(self) -> None:
        self._csrf = secrets.token_urlsafe(32)

    async def resolve(self, request: Request) -> None:
        """Nothing has to be looked up."""

    async def until_ended(self, request: Request) -> None:  # noqa: ARG002
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is open."""

    def identify(self, request: Request) -> Principal:
        """Raises `Forbidden` for what comes from a web page of another origin."""
        host = request.headers.get("host", "")
        if hostname(host) not in LOCAL_HOSTS:
            raise Forbidden(
                "this server answers only by a name of this machine.",
                field="host",
                got=host,
                hint="Use http://127.0.0.1 or http://localhost.",
            )
        check_origin(request)
        return Principal(NOBODY_NAMED, EVERY_SCOPE)

    def csrf(self, request: Request) -> str:  # noqa: ARG002
        return self._csrf

    def check_change(self, request: Request, principal: Principal, csrf: str | None = None) -> None:
        """A form needs the token; what no form can send has an `Origin`, or comes from no browser."""
        del principal
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in FORM_TYPES or csrf is not None or CSRF_HEADER in request.headers:
            check_csrf(request, self._csrf, csrf)


def check_origin(request: Request) -> None:
    origin = request.headers.get("origin")
    if origin is not None and origin.lower() != own_origin(request):
        raise Forbidden(
            "requests from a page of another origin are refused.", field="origin", got=origin
        )


def own_origin(request: Request) -> str:
    """As browsers name this server."""
    return f"{request.scope['scheme']}://{request.headers.get('host', '').lower()}"


def check_csrf(request: Request, wanted: str, field: str | None) -> None:
    """Header or field of the form."""
    given = request.headers.get(CSRF_HEADER) or field or ""
    if not wanted or not hmac.compare_digest(given.encode(), wanted.encode()):
        raise Forbidden(
            "the CSRF token of this change is missing or old.",
            field="csrf",
            hint="Reload the page and try again.",
        )


def hostname(host: str) -> str:
    """Of a `Host` header, without the port; "" where it is none."""
    if "@" in host:
        return ""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def who_asks(access: Access, request: Request, scope: Scope) -> Principal:
    """Who may ask for what needs `scope`. What is public needs no token, but a wrong one is refused there too."""
    try:
        principal = access.identify(request)
    except NoToken:
        if scope != "public":
            raise
        return ANYONE
    principal.check(scope)
    return principal
