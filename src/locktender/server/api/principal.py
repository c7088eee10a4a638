"""Who asks: the one place where a request becomes a principal.

Without tokens everyone who reaches the address may do everything, so that
address must be loopback. A web page of a stranger reaches it too, through the
browser of somebody at this machine: by a name that was made to mean 127.0.0.1
(the `Host` header tells), or by a form or script of another origin (the
`Origin` header tells).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from starlette.requests import Request

from locktender.base.errors import InvalidInput
from locktender.server.api.answers import Forbidden

Scope = Literal["public", "read", "submit", "operate", "admin"]
"""What a route asks of a principal. `public`: nothing."""
EVERY_SCOPE: frozenset[Scope] = frozenset({"public", "read", "submit", "operate", "admin"})
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who asks: what they may do, and which runs are theirs."""

    name: str
    """Recorded with every change."""
    scopes: frozenset[Scope]
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Only runs with all of these tags are theirs; none: every run."""

    def sees(self, tags: Mapping[str, str]) -> bool:
        """Whether a run with these tags is theirs."""
        return all(tags.get(key) == value for key, value in self.tags.items())

    def check(self, scope: Scope) -> None:
        if scope not in self.scopes:
            raise Forbidden(
                f"this needs the scope {scope!r}.",
                field="scope",
                got=", ".join(sorted(self.scopes)),
            )


class LoopbackAccess:
    """Everyone on this machine, with every scope."""

    def identify(self, request: Request) -> Principal:
        """Raises `Forbidden` for what comes from a web page of somebody else."""
        host = request.headers.get("host", "")
        if _hostname(host) not in LOCAL_HOSTS:
            raise Forbidden(
                "this server answers only by a name of this machine.",
                field="host",
                got=host,
                hint="Use http://127.0.0.1 or http://localhost.",
            )
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            raise Forbidden(
                "a page of another origin may not ask this server.", field="origin", got=origin
            )
        return Principal("http", EVERY_SCOPE)


def _hostname(host: str) -> str:
    if "@" in host:
        return ""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def check_bind(listener: socket.socket, *, loopback: bool) -> None:
    """Refuses to serve the API without tokens where others than this machine reach it."""
    if loopback:
        return
    host = listener.getsockname()[0]
    raise InvalidInput(
        f"the API without tokens is for this machine alone, and {host} is not.",
        field="host",
        got=host,
        hint="Leave out --host, or serve only /health, /ready, /metrics and /api/v1/demand with --no-api.",
    )
