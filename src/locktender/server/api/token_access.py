"""Access by tokens: `Authorization: Bearer lt_…`, or the cookie of a session that was opened with one.

A token is looked up by its id and compared with its hash. What the store said of
it serves for a second, so that a revoked one is refused within two. A store that
does not answer is an error, never an admission.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from locktender.base.background import end_tasks
from locktender.base.clock import SECOND
from locktender.base.errors import LocktenderError, StoreError
from locktender.base.tokens import TokenRow, implied, matches, token_parts
from locktender.client.core import Core
from locktender.client.tokens import end_session, note_use, open_session, read_tokens
from locktender.server.api.answers import Forbidden, Unauthorized
from locktender.server.api.principal import (
    Access,
    NoToken,
    Principal,
    Scope,
    check_csrf,
    check_origin,
    hostname,
)

log: logging.Logger = logging.getLogger(__name__)
KEPT_SECONDS = 1.0
"""How old the answer of the store may be."""
MAX_KEPT = 1_000
LOOKUP_SECONDS = 5.0
USE_SECONDS = 60
"""How exact the time of the last use is."""
SESSION_SECONDS = 12 * 3_600
FOUND = "locktender.principal"
OPEN_PATHS = frozenset({"/health", "/ready"})
"""Answered without looking at tokens, also when the store is away."""
Sent = Literal["bearer", "cookie"]
MAKE_ONE = "Make one: locktender tokens create NAME --scope read"


class Kept:
    """What the store said of a token, and when."""

    def __init__(self, rows: Mapping[str, TokenRow], at: float) -> None:
        self.rows = rows
        self.at = at


class TokenAccess:
    """Everyone who has a token, with its scopes and tags."""

    def __init__(self, core: Core, allowed_hosts: Iterable[str] = ()) -> None:
        """`allowed_hosts`: names by which the server answers; none: any."""
        self._core = core
        self._hosts = frozenset(each.lower() for each in allowed_hosts)
        self._kept: dict[str, Kept] = {}
        self._reads: dict[str, asyncio.Task[Kept]] = {}
        self._used: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._followed: dict[tuple[str, Sent], set[asyncio.Future[None]]] = {}
        """What came with requests whose answers last, and who waits for its end."""
        self._watch: asyncio.Task[None] | None = None

    async def resolve(self, request: Request) -> None:
        """Finds out who asks, for `identify`."""
        try:
            found: Principal | Exception = await self._find(request)
        except Exception as error:  # noqa: BLE001 — the caller of `identify` gets it
            found = error
        request.scope[FOUND] = found

    def identify(self, request: Request) -> Principal:
        """Raises `Unauthorized`, `Forbidden`, or that the store did not answer."""
        found = request.scope.get(FOUND)
        if isinstance(found, Exception):
            raise found
        if found is None:
            raise NoToken("this needs a token.", field="authorization", hint=MAKE_ONE)
        return cast("Principal", found)

    def csrf(self, request: Request) -> str:
        secret = request.cookies.get(cookie_name(request), "")
        if self.identify(request).by != "cookie":
            return ""
        # Only this server's own pages can know it: the cookie is HttpOnly.
        return hmac.new(secret.encode(), b"locktender csrf", hashlib.sha256).hexdigest()

    def check_change(self, request: Request, principal: Principal, csrf: str | None = None) -> None:
        """A browser sends a cookie by itself, so that the token of its page has to come with it."""
        if principal.by != "cookie":
            return
        check_origin(request)
        check_csrf(request, self.csrf(request), csrf)

    async def until_ended(self, request: Request) -> None:
        """Returns when the token of a request has no rights any more. One timer and one read serve all."""
        text, by = self._sent(request)
        ended = asyncio.get_running_loop().create_future()
        self._followed.setdefault((text, by), set()).add(ended)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watch_tokens())
        try:
            await ended
        finally:
            self._followed[text, by].discard(ended)
            if not self._followed[text, by]:
                del self._followed[text, by]

    async def _watch_tokens(self) -> None:
        while self._followed:
            await asyncio.sleep(KEPT_SECONDS)
            # Who comes during the read is asked about next time: the answer says nothing of them.
            asked = [*self._followed]
            ids = {parts[0] for text, _ in asked if (parts := token_parts(text))}
            try:
                at = _now()
                kept = Kept(await read_tokens(self._core, [*ids]), at)
            except (LocktenderError, TimeoutError):
                continue  # it is asked again
            for text, by in asked:
                try:
                    row = self._judged(text, kept, session=by == "cookie")
                except Unauthorized:
                    for each in self._followed.get((text, by), ()):
                        if not each.done():
                            each.set_result(None)
                else:
                    self._note(row, at)

    async def log_in(self, token: str) -> str:
        """The cookie of a new session. Raises `Unauthorized`."""
        row, _ = await self._valid(token, session=False)
        return await open_session(self._core, row, SESSION_SECONDS)

    async def log_out(self, request: Request) -> None:
        parts = token_parts(request.cookies.get(cookie_name(request), ""))
        if parts is not None and self.identify(request).by == "cookie":
            await end_session(self._core, parts[0])
            self._kept.pop(parts[0], None)

    async def close(self) -> None:
        watch = [] if self._watch is None else [self._watch]
        await end_tasks([*self._tasks, *self._reads.values(), *watch])

    async def _find(self, request: Request) -> Principal:
        host = request.headers.get("host", "")
        if self._hosts and hostname(host) not in self._hosts:
            raise Forbidden("the host name of the request is not allowed.", field="host", got=host)
        text, by = self._sent(request)
        row, used = await self._valid(text, session=by == "cookie")
        self._note(row, used)
        scopes = cast("frozenset[Scope]", frozenset({"public", *implied(row.rights.scopes)}))
        return Principal(row.name, scopes, row.rights.tags, by, row.id)

    def _sent(self, request: Request) -> tuple[str, Sent]:
        """The token or the cookie of a request. Raises `Unauthorized`."""
        given = request.headers.get("authorization")
        if given is not None:
            kind, _, text = given.partition(" ")
            if kind.lower() != "bearer":
                raise Unauthorized(
                    "only bearer tokens are known here.",
                    field="authorization",
                    got=kind[:20],
                    hint="Authorization: Bearer lt_…",
                )
            return text.strip(), "bearer"
        cookie = request.cookies.get(cookie_name(request))
        if cookie is None:
            raise NoToken("this needs a token.", field="authorization", hint=MAKE_ONE)
        return cookie, "cookie"

    async def _valid(self, text: str, *, session: bool) -> tuple[TokenRow, float]:
        """The token that the text stands for, itself or through a session; and when it was read."""
        parts = token_parts(text)
        if parts is None:
            raise Unauthorized("this is not a token.", field="authorization", hint="lt_ID_SECRET")
        kept = await self._read(parts[0])
        return self._judged(text, kept, session=session), kept.at

    def _judged(self, text: str, kept: Kept, *, session: bool) -> TokenRow:
        """The token, if what the store said of it makes it valid now. Raises `Unauthorized`."""
        parts = token_parts(text) or ("", "")
        row = kept.rows.get(parts[0])
        if not matches(row, parts[1]) or row is None or (row.parent is not None) != session:
            raise Unauthorized("this token is not known.", field="authorization", hint=MAKE_ONE)
        owner = row if row.parent is None else kept.rows.get(row.parent)
        passed = round((_now() - kept.at) * SECOND)
        for each in (row, owner):
            state = "revoked" if each is None else _later(each, passed).state
            if state != "valid":
                what = "session" if session and each is row else "token"
                said = "was revoked" if state == "revoked" else "has expired"
                raise Unauthorized(f"this {what} {said}.", field="authorization", hint=MAKE_ONE)
        return cast("TokenRow", owner)

    async def _read(self, token: str) -> Kept:
        kept = self._kept.get(token)
        if kept is not None and _now() - kept.at < KEPT_SECONDS:
            return kept
        read = self._reads.get(token)
        if read is None:
            read = self._reads[token] = asyncio.create_task(self._read_store(token))
            read.add_done_callback(_seen)
        # A request that is given up does not cancel the answer of the others.
        await asyncio.wait({read}, timeout=LOOKUP_SECONDS)
        if not read.done():
            raise TimeoutError
        return read.result()

    async def _read_store(self, token: str) -> Kept:
        try:
            at = _now()  # before the read: what the store says may be as old as that
            kept = Kept(await read_tokens(self._core, [token]), at)
        finally:
            del self._reads[token]
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        if kept.rows:
            self._kept[token] = kept
        return kept

    def _note(self, row: TokenRow, read_at: float) -> None:
        known = self._used.get(row.id)
        stored = row.used_at is not None and row.read_at - row.used_at < USE_SECONDS * SECOND
        if stored or (known is not None and read_at - known < USE_SECONDS):
            return
        if len(self._used) >= MAX_KEPT:
            self._used.clear()
        self._used[row.id] = read_at
        task = asyncio.create_task(self._note_use(row.id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _note_use(self, token: str) -> None:
        try:
            await note_use(self._core, [token])
        except StoreError as error:
            log.warning("failed to note the use of token %s: %s", token, error)


def cookie_name(request: Request) -> str:
    """Under TLS a name that a browser takes only with `Secure`, for this host alone."""
    return "__Host-locktender" if request.scope["scheme"] == "https" else "locktender"


def _now() -> float:
    return asyncio.get_running_loop().time()


def _later(row: TokenRow, us: int) -> TokenRow:
    return msgspec.structs.replace(row, read_at=row.read_at + us)


def _seen(task: asyncio.Task[Any]) -> None:
    """Reads the error of a read that no request waits for any more, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


class Identified:
    """Finds out who asks before any handler does: `identify` itself waits for nothing."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            await self._access.resolve(Request(scope))
        await self._app(scope, receive, send)
