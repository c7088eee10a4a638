"""Requests to a server: which are repeated, how long they may take, and answers as values.

What only reads is repeated while the server is away, as reads of a store are. A change is repeated only where
twice is as once (a submission has an Idempotency-Key, a setting is set again to the same), or where the server
said that it has not begun.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote, urlsplit

import msgspec

from locktender.base import version
from locktender.base.clock import SystemClock
from locktender.base.errors import (
    InvalidInput,
    LocktenderError,
    StoreBusy,
    StoreError,
    StoreUnreachable,
)
from locktender.client.client_async import ServerAccess
from locktender.client.guard import ClientGuard
from locktender.client.remote.faults import error_of
from locktender.store.retry import repeated

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
PREFIX = "/api/v1"
TOKEN = "LOCKTENDER_TOKEN"  # noqa: S105 — the name of a variable
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""An answer may take this long to begin, beside the time for which a request asks to wait."""
QUIET_SECONDS = 45.0
"""A stream says something every 15 seconds."""
MAX_CONNECTIONS = 100
MAX_AT_ONCE = 16
"""Requests that are under way, but those that wait or stream: more would only wait in the server."""
LONGEST_WAIT = 30
"""Seconds that a server waits for what a request asks to wait for."""


class Unrepeatable(LocktenderError):
    """Carries an error past what repeats requests."""

    def __init__(self, error: LocktenderError) -> None:
        super().__init__(str(error))
        self.error = error


class PageEnd(msgspec.Struct, frozen=True):
    next: str | None = None


def path_of(*parts: str | int) -> str:
    """Each part quoted, so that a name cannot be another path."""
    return "".join(f"/{quote(str(part), safe='=*:@,')}" for part in parts)


class HttpServer:
    """One server, or several behind one address."""

    def __init__(self, url: str, access: ServerAccess, guard: ClientGuard) -> None:
        self.url: str = checked_url(url)
        self._guard = guard
        self.clock: SystemClock = SystemClock()
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)
        token = access.token if access.token is not None else os.environ.get(TOKEN, "").strip()
        self._library = _httpx()
        local = _is_loopback(urlsplit(self.url).hostname or "")
        self._client: httpx.AsyncClient = self._library.AsyncClient(
            base_url=f"{self.url}{PREFIX}",
            headers={"user-agent": f"locktender/{version.installed()}", **_bearer(token)},
            verify=_trust(access.ca) if self.url.startswith("https") else False,
            timeout=self._library.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, pool=None),
            limits=self._library.Limits(max_connections=MAX_CONNECTIONS),
            # A proxy of the environment is for the world outside: it would not reach this machine's loopback.
            trust_env=not local,
        )

    async def get(
        self,
        path: str,
        kind: type[T],
        field: str | None = None,
        *,
        query: Mapping[str, Any] | None = None,
    ) -> T:
        """The answer, or its member `field`, as `kind`."""
        return await self.call("GET", path, kind, field, query=query, again=True)

    async def pages(self, path: str, kind: type[list[T]], field: str, limit: int) -> list[list[T]]:
        """The pages of a list until it has `limit` entries. One may be empty, and others follow."""
        found: list[list[T]] = []
        cursor: str | None = None
        while limit > 0:
            query = {"limit": limit, "cursor": cursor}
            raw = await self._repeated("GET", path, query, None, {}, again=True)
            found.append(self.read(raw, kind, field))
            limit -= len(found[-1])
            cursor = self.read(raw, PageEnd).next
            if cursor is None:
                break
        return found

    async def call(
        self,
        method: str,
        path: str,
        kind: type[T],
        field: str | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        key: str | None = None,
        trace: str | None = None,
        again: bool = False,
    ) -> T:
        """The answer of one request. `again`: twice is as once, so that it may be repeated; `key`: makes it so."""
        given = {"idempotency-key": key, "traceparent": trace}
        headers = {name: value for name, value in given.items() if value is not None}
        raw = await self._repeated(method, path, query, body, headers, again=again)
        return self.read(raw, kind, field)

    async def do(self, method: str, path: str, *, body: object = None, again: bool = False) -> None:
        """A change whose answer says no more than that it was made."""
        await self._repeated(method, path, None, body, {}, again=again)

    def read(self, raw: bytes, kind: type[T], field: str | None = None) -> T:
        """An answer as a value. Raises `StoreError` where it is of another release."""
        try:
            if field is not None:
                raw = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])[field]
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.MsgspecError, KeyError) as error:
            raise StoreError(
                f"the answer of {self.url} cannot be read: {error}.",
                hint="Is the server of another release? Compare: locktender --version.",
            ) from error

    async def _repeated(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: object,
        headers: dict[str, str],
        *,
        again: bool,
    ) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        if content is not None:
            headers = {**headers, "content-type": "application/json"}
        params = {name: value for name, value in (query or {}).items() if value is not None}

        async def once() -> bytes:
            try:
                return await self._once(method, path, params, content, headers)
            except _LostAnswer as lost:
                if again:
                    raise lost.error from lost
                raise Unrepeatable(lost.error) from lost
            except StoreBusy:
                raise  # it was refused before anything was done
            except StoreError as error:
                if again:
                    raise
                raise Unrepeatable(error) from error

        try:
            return await repeated(once, f"{method} {path}", self.clock, self._guard.check)
        except Unrepeatable as found:
            raise found.error from found.error.__cause__

    async def _once(
        self,
        method: str,
        path: str,
        params: dict[str, Any],
        content: bytes | None,
        headers: dict[str, str],
    ) -> bytes:
        self._guard.check()
        library = self._library
        wait = float(params.get("wait") or 0)
        timeout = library.Timeout(ANSWER_SECONDS + wait, connect=CONNECT_SECONDS, pool=None)
        try:
            async with nullcontext() if wait else self._turns:
                answer = await self._client.request(
                    method,
                    path,
                    params={name: _text(value) for name, value in params.items()},
                    content=content,
                    headers=headers,
                    timeout=timeout,
                )
        except (library.ConnectError, library.ConnectTimeout) as error:
            raise self._unreachable(error) from error
        except library.TransportError as error:
            raise _LostAnswer(
                StoreUnreachable(
                    f"the connection to {self.url} ended before the answer: {_said(error)}.",
                    field="url",
                    got=self.url,
                    hint="It is not known whether the request was carried out."
                    if method != "GET"
                    else None,
                )
            ) from error
        if answer.is_success:
            return answer.content
        raise error_of(answer.status_code, answer.content, self.url)

    def _unreachable(self, error: Exception) -> LocktenderError:
        if isinstance(error.__cause__, ssl.SSLCertVerificationError) or "CERTIFICATE" in str(error):
            return InvalidInput(
                f"the certificate of {self.url} is not trusted: {error}.",
                field="url",
                hint="Give the certificate of its authority: connect(url, ca=FILE), or SSL_CERT_FILE.",
            )
        if "WRONG_VERSION_NUMBER" in str(error):
            return InvalidInput(
                f"{self.url} answers without TLS.",
                field="url",
                got=self.url,
                hint="Start the server with --tls-cert and --tls-key; on this machine use http://.",
            )
        return StoreUnreachable(
            f"nothing answers at {self.url}: {_said(error)}.",
            field="url",
            got=self.url,
            hint="Is `locktender server` running there?",
        )

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, Any], last_id: str
    ) -> AsyncGenerator[AsyncIterator[tuple[str, str, bytes]]]:
        """Messages (id, event, data) of server-sent events, from behind `last_id`, until the connection ends."""
        self._guard.check()
        library = self._library
        params = {name: _text(value) for name, value in query.items() if value is not None}
        headers = {"accept": "text/event-stream", **({"last-event-id": last_id} if last_id else {})}
        timeout = library.Timeout(QUIET_SECONDS, connect=CONNECT_SECONDS, pool=None)
        try:
            async with self._client.stream(
                "GET", path, params=params, headers=headers, timeout=timeout
            ) as answer:
                if not answer.is_success:
                    raise error_of(answer.status_code, await answer.aread(), self.url)
                yield _messages(answer)
        except (library.ConnectError, library.ConnectTimeout) as error:
            raise self._unreachable(error) from error
        except library.TransportError as error:
            raise StoreUnreachable(
                f"the connection to {self.url} ended: {_said(error)}.",
                field="url",
                got=self.url,
            ) from error

    async def close(self) -> None:
        await self._client.aclose()


class _LostAnswer(StoreError):
    """The request was sent, and no answer came."""

    def __init__(self, error: StoreUnreachable) -> None:
        super().__init__(error.message)
        self.error = error


async def _messages(answer: httpx.Response) -> AsyncIterator[tuple[str, str, bytes]]:
    place, event, data = "", "", ""
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                place = value
            elif name == "event":
                event = value
            elif name == "data":
                data += value
            continue
        yield place, event, data.encode()
        event, data = "", ""


def _said(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _bearer(token: str) -> dict[str, str]:
    if not token:
        return {}
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInput(
            "this is not a token: it has characters that no token has.",
            field="token",
            hint=f"locktender tokens create makes one; give it as token=… or {TOKEN}.",
        )
    return {"authorization": f"Bearer {token}"}


def _trust(ca: str | None) -> ssl.SSLContext:
    """The system's certificates, or those of `ca` alone."""
    try:
        if ca is None:
            return ssl.create_default_context()
        if os.path.isdir(ca):  # noqa: PTH112 — a path as it was given
            return ssl.create_default_context(capath=ca)
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"ca cannot be read: {error}.",
            field="ca",
            got=ca,
            hint="Give a file of certificates in PEM form.",
        ) from error


def checked_url(url: str) -> str:
    """The address of a server. Raises `InvalidInput`: a password in it, or no TLS beyond this machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise InvalidInput(f"url is not an address: {error}.", field="url") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            "a server takes no user and password.",
            field="url",
            got=f"{parts.scheme}://…@{host}",
            hint=f"Give a token: connect(url, token=…), or {TOKEN} in the environment.",
        )
    if not host or parts.query or parts.fragment:
        raise InvalidInput(
            "url is not the address of a server.",
            field="url",
            got=url,
            hint="e.g. https://flows.example.org or http://127.0.0.1:8470",
        )
    if parts.scheme.lower() == "http" and not _is_loopback(host):
        raise InvalidInput(
            "http:// is for this machine alone: everyone on the way would read the token.",
            field="url",
            got=url,
            hint=f"Use https://{parts.netloc}.",
        )
    return f"{parts.scheme.lower()}://{parts.netloc}{parts.path.rstrip('/').removesuffix(PREFIX)}"


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _httpx() -> Any:
    try:
        # Only here: the library is an extra, and a store needs none.
        import httpx as library
    except ImportError as error:
        raise InvalidInput(
            "https:// needs a library that is not installed.",
            field="url",
            got="https://…",
            hint="Try: pip install 'locktender[remote]'.",
        ) from error
    return cast("ModuleType", library)
