"""The few requests to a Kubernetes API server that are needed, over asyncio and h11.

Few endpoints are used: create, read, list, watch and delete Jobs, list pods, read an owner.
The official client brings 20 distributions for them. HTTP/1.1 and these endpoints have been
stable for years, and h11 is here already: uvicorn needs it.

Each request has a connection of its own. The token is read from its file each time, so a
rotated one is used at once; after 401 it is read again and the request repeated. 429 and
503 are repeated after `Retry-After`, a bounded number of times.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import h11
import msgspec

from locktender.base.errors import InvalidSettings, LocktenderError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_BODY_BYTES = 64 << 20
MAX_LINE_BYTES = 8 << 20
MAX_TRIES = 4
MAX_PAUSE_SECONDS = 10.0
REQUEST_SECONDS = 20.0
CONNECT_SECONDS = 10.0
CHUNK_BYTES = 64 << 10
JsonObject = dict[str, Any]


class ApiError(LocktenderError):
    """The API server refused a request."""

    code = "kubernetes"

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"the API server answered {status}: {message}")
        self.status = status
        self.retry_after = retry_after
        self.unsure: bool = status >= 500
        """This try or one before it may have been carried out."""


class ApiUnreachable(LocktenderError):
    code = "kubernetes_unreachable"

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """The request was sent: it may have been carried out."""


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Where the API server is, and what a request shows it."""

    server: str
    namespace: str
    token_file: str = ""
    ca_file: str = ""

    @classmethod
    def found(
        cls, *, server: str = "", namespace: str = "", token_file: str = "", ca_file: str = ""
    ) -> ApiAccess:
        """What is given, else what a pod has."""
        inside = not server
        if inside:
            host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
            port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host:
                raise InvalidSettings(
                    "this process runs in no pod, and provisioner.api_server is not set.",
                    field="provisioner.api_server",
                    hint="From outside: kubectl proxy, and api_server = 'http://127.0.0.1:8001'.",
                )
            server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
            token_file = token_file or str(ACCOUNT / "token")
            ca_file = ca_file or str(ACCOUNT / "ca.crt")
        if not namespace and inside:
            with suppress(OSError):
                namespace = (ACCOUNT / "namespace").read_text().strip()
        return cls(server, namespace or "default", token_file, ca_file)


class KubeApi:
    def __init__(self, access: ApiAccess) -> None:
        self._access = access
        parts = urlsplit(access.server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidSettings(
                "provisioner.api_server is not a url.",
                field="provisioner.api_server",
                got=access.server,
                hint="e.g. http://127.0.0.1:8001",
            )
        self._host, self._tls = parts.hostname, parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._authority = f"{host}:{self._port}"
        self._prefix = parts.path.rstrip("/")

    def path(self, group: str, plural: str, name: str = "") -> str:
        root = "/api/v1" if group == "v1" else f"/apis/{group}"
        whole = f"{root}/namespaces/{quote(self._access.namespace, safe='')}/{plural}"
        return f"{whole}/{quote(name, safe='')}" if name else whole

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> JsonObject:
        return await self._request("GET", path, query)

    async def post(self, path: str, body: JsonObject) -> JsonObject:
        return await self._request("POST", path, None, body)

    async def delete(self, path: str, propagation: str) -> JsonObject:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
        }
        return await self._request("DELETE", path, None, options)

    async def watch(
        self, path: str, query: Mapping[str, str], seconds: float
    ) -> AsyncGenerator[JsonObject]:
        """Events until the server ends the answer; after `seconds` it counts as unreachable."""
        try:
            async with asyncio.timeout(seconds), self._answer("GET", path, query, None) as answer:
                buffered = b""
                async for chunk in answer.body():
                    *lines, buffered = (buffered + chunk).split(b"\n")
                    if len(buffered) > MAX_LINE_BYTES:
                        raise ApiUnreachable("an event is too large", sent=True)
                    for line in filter(bytes.strip, lines):
                        yield _object(line)
        except TimeoutError:
            raise ApiUnreachable("the watch did not end in its time", sent=True) from None

    # -- one request -------------------------------------------------------------------------------

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: JsonObject | None = None,
    ) -> JsonObject:
        unsure = False
        for tries in range(1, MAX_TRIES + 1):
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    async with self._answer(method, path, query, body) as answer:
                        return _object(await answer.whole())
            except TimeoutError:
                raise ApiUnreachable("the API server did not answer in time", sent=True) from None
            except ApiUnreachable as error:
                error.sent |= unsure
                raise
            except ApiError as error:
                error.unsure = unsure = unsure or error.unsure
                pause = _pause(error)
                if pause is None or tries == MAX_TRIES:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, query: Mapping[str, str] | None, body: JsonObject | None
    ) -> AsyncGenerator[_Answer]:
        target = f"{self._prefix}{path}" + (f"?{urlencode(query)}" if query else "")
        data = b"" if body is None else msgspec.json.encode(body)
        headers = [
            ("host", self._authority),
            ("accept", "application/json"),
            ("user-agent", "locktender"),
            ("connection", "close"),
            ("content-length", str(len(data))),
        ]
        if body is not None:
            headers.append(("content-type", "application/json"))
        token = await asyncio.to_thread(self._token)
        if token:
            headers.append(("authorization", f"Bearer {token}"))
        sent = False
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                context = await asyncio.to_thread(self._context)
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, ssl=context, limit=CHUNK_BYTES
                )
            _keep_alive(writer)
            answer = _Answer(reader)
            writer.write(answer.request(method, target, headers, data))
            sent = True
            await writer.drain()
            await answer.head()
            if answer.status >= 400:
                raise await answer.error()
            yield answer
        except TimeoutError:
            if sent:
                raise
            raise ApiUnreachable(f"{self._where} timed out", sent=False) from None
        except (OSError, h11.RemoteProtocolError, EOFError) as error:
            raise ApiUnreachable(
                f"failed to reach {self._where}: {str(error) or type(error).__name__}", sent=sent
            ) from error
        finally:
            if writer is not None:
                writer.close()

    @property
    def _where(self) -> str:
        return f"the API server at {self._authority}"

    def _token(self) -> str:
        path = self._access.token_file
        try:
            return Path(path).read_text().strip() if path else ""
        except OSError as error:
            said = f"failed to read the token {path}: {error.strerror}"
            raise ApiUnreachable(said, sent=False) from error

    def _context(self) -> ssl.SSLContext | None:
        """Made each time: the authority's certificate may be replaced too."""
        if not self._tls:
            return None
        return ssl.create_default_context(cafile=self._access.ca_file or None)


class _Answer:
    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._http = h11.Connection(h11.CLIENT)
        self.status = 0
        self._retry_after: float | None = None

    def request(
        self, method: str, target: str, headers: list[tuple[str, str]], data: bytes
    ) -> bytes:
        wire = self._http.send(h11.Request(method=method, target=target, headers=headers)) or b""
        if data:
            wire += self._http.send(h11.Data(data=data)) or b""
        return wire + (self._http.send(h11.EndOfMessage()) or b"")

    async def head(self) -> None:
        event = await self._next()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next()
        if not isinstance(event, h11.Response):
            raise EOFError("the connection ended before the answer")  # noqa: TRY004
        self.status = event.status_code
        for name, value in event.headers:
            if name == b"retry-after" and value.isdigit():
                self._retry_after = float(value)

    async def body(self) -> AsyncGenerator[bytes]:
        while True:
            event = await self._next()
            if isinstance(event, h11.EndOfMessage):
                return
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.ConnectionClosed):
                raise EOFError("the connection ended within the answer")  # noqa: TRY004

    async def whole(self) -> bytes:
        found = bytearray()
        async for chunk in self.body():
            found += chunk
            if len(found) > MAX_BODY_BYTES:
                raise ApiUnreachable("the answer is too large", sent=True)
        return bytes(found)

    async def error(self) -> ApiError:
        text = await self.whole()
        try:
            message = str(_object(text).get("message", ""))
        except ApiUnreachable:
            message = text.decode(errors="replace").strip()
        return ApiError(self.status, message[:500] or "no message", self._retry_after)

    async def _next(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._http.receive_data(await self._reader.read(CHUNK_BYTES))


def _pause(error: ApiError) -> float | None:
    """How long to wait before the request is repeated; None: it is not."""
    if error.status == 401:
        return 0.0  # the token may have been rotated between reading and sending it
    if error.status in (429, 503):
        pause = 1.0 if error.retry_after is None else error.retry_after
        return pause if pause <= MAX_PAUSE_SECONDS else None
    return None


def _object(text: bytes) -> JsonObject:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ApiUnreachable(f"the answer is not JSON: {error}", sent=True) from error
    if not isinstance(found, dict):
        raise ApiUnreachable("the answer is not an object", sent=True)
    return cast("JsonObject", found)


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """TCP keep-alive: a watch whose server is gone ends within half a minute."""
    found = writer.get_extra_info("socket")
    if found is None:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
