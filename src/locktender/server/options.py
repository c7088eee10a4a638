"""How a server is reached: who may ask, TLS, and proxies in front of it."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from locktender.base.errors import InvalidInput

Auth = Literal["none", "tokens"]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
FORWARDED = (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded")


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The defaults are those of loopback: no tokens, no TLS, no proxy."""

    auth: Auth = "none"
    allowed_hosts: frozenset[str] = frozenset()
    """With tokens: names by which the server answers; none: any."""
    proxies: tuple[Network, ...] = ()
    """From whom `X-Forwarded-*` is believed."""
    tls: tuple[Path, Path] | None = field(default=None)
    """Certificate and key."""

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"


def http_options(
    *,
    auth: str | None,
    loopback: bool,
    allowed_hosts: Sequence[str] = (),
    proxies: Sequence[str] = (),
    tls_cert: str | None = None,
    tls_key: str | None = None,
) -> HttpOptions:
    """Raises `InvalidInput` for what is wrong or unsafe."""
    if auth not in (None, "none", "tokens"):
        raise InvalidInput(
            "auth must be none or tokens.",
            field="auth",
            got=auth,
            hint="none is for loopback alone.",
        )
    needs: Auth = "none" if loopback else "tokens"
    chosen: Auth = needs if auth is None else auth  # type: ignore[assignment]
    if chosen == "none" and not loopback:
        raise InvalidInput(
            "without tokens the API is for this machine alone.",
            field="auth",
            got="none",
            hint="Leave out --auth or --host, or serve only /health, /ready, /metrics and"
            " /api/v1/demand with --no-api.",
        )
    if chosen == "none" and (proxies or allowed_hosts):
        # A proxy brings requests from everywhere, each of which would seem to come from this machine.
        raise InvalidInput(
            "a proxy and names of hosts need tokens.",
            field="trusted_proxy" if proxies else "allowed_host",
            hint="Add --auth tokens.",
        )
    return HttpOptions(
        chosen,
        frozenset(each.lower() for each in allowed_hosts),
        tuple(networks(proxies)),
        checked_tls(tls_cert, tls_key),
    )


def networks(given: Iterable[str]) -> Iterable[Network]:
    """`10.0.0.0/8,192.168.1.5`"""
    for each in (part.strip() for text in given for part in text.split(",")):
        try:
            yield ipaddress.ip_network(each)
        except ValueError as error:
            raise InvalidInput(
                f"{each!r} is not a network: {error}.",
                field="trusted_proxy",
                got=each,
                hint="e.g. 10.0.0.7 or 10.0.0.0/8",
            ) from None


def checked_tls(cert: str | None, key: str | None) -> tuple[Path, Path] | None:
    """Loads both once, so that what is wrong with them is said at the start."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        missing = "tls-cert" if cert is None else "tls-key"
        raise InvalidInput(
            "a certificate and its key are given together.",
            field=missing.replace("-", "_"),
            hint=f"Add --{missing}.",
        )
    files = {"tls_cert": Path(cert), "tls_key": Path(key)}
    for name, path in files.items():
        try:
            path.read_bytes()
        except OSError as error:
            raise InvalidInput(
                f"{path} cannot be read: {error.strerror}.", field=name, got=str(path)
            ) from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, ValueError, OSError) as error:
        raise _wrong_pair(error, files) from None
    return files["tls_cert"], files["tls_key"]


class _PasswordNeeded(ValueError):
    pass


def _no_password() -> str:
    raise _PasswordNeeded  # else the process would wait for a typed password


def _wrong_pair(error: Exception, files: dict[str, Path]) -> InvalidInput:
    key = str(files["tls_key"])
    if isinstance(error, _PasswordNeeded):
        return InvalidInput(
            f"the key {key} is encrypted.",
            field="tls_key",
            got=key,
            hint=f"openssl pkey -in {key} -out plain.pem",
        )
    if "MISMATCH" in str(error):
        return InvalidInput(
            f"the key {key} does not belong to the certificate {files['tls_cert']}.",
            field="tls_key",
            got=key,
        )
    # OpenSSL does not say which of the two it could not read.
    wrong = "tls_cert" if b"-----BEGIN CERT" not in files["tls_cert"].read_bytes() else "tls_key"
    return InvalidInput(
        f"{files[wrong]} is not a {'certificate' if wrong == 'tls_cert' else 'private key'} in PEM form.",
        field=wrong,
        got=str(files[wrong]),
    )


class Forwarded:
    """Believes a trusted proxy whom it asks for, by which name and scheme; nobody else."""

    def __init__(self, app: ASGIApp, proxies: Sequence[Network]) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = self._seen(scope)
        await self._app(scope, receive, send)

    def _seen(self, scope: Scope) -> Scope:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        said = {name: value for name, value in headers if name in FORWARDED}
        if not said:
            return scope
        kept = [(name, value) for name, value in headers if name not in FORWARDED]
        found = {**scope, "headers": kept}
        peer = scope.get("client")
        if peer is None or not self._trusts(peer[0]):
            return found
        if proto := _last(said.get(b"x-forwarded-proto")):
            found["scheme"] = "https" if proto == "https" else "http"
        if host := _last(said.get(b"x-forwarded-host")):
            rest = [each for each in kept if each[0] != b"host"]
            found["headers"] = [*rest, (b"host", host.encode("latin-1"))]
        found["client"] = (self._client(said.get(b"x-forwarded-for"), peer[0]), peer[1])
        return found

    def _client(self, header: bytes | None, peer: str) -> str:
        """The last address that no trusted proxy has: all before it may be invented."""
        for each in reversed((header or b"").decode("latin-1").split(",")):
            if not each.strip() or not self._trusts(peer):
                break
            peer = each.strip()
        return peer

    def _trusts(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        return any((mapped or found) in network for network in self._proxies)


def _last(header: bytes | None) -> str:
    """What the nearest proxy said."""
    return (header or b"").decode("latin-1").rpartition(",")[2].strip().lower()
