"""Options of `server` and `dev` about who may ask the HTTP API; what each says is in `server/options.py`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from locktender.base.errors import InvalidInput

if TYPE_CHECKING:
    from locktender.base.config import Settings
    from locktender.cli.context import Context

PANEL = "Who may ask"
AuthOption = Annotated[
    str | None,
    typer.Option(
        "--auth",
        metavar="none|tokens",
        rich_help_panel=PANEL,
        show_default=False,
        help="tokens: every request needs one. Default none on loopback; elsewhere it must be tokens.",
    ),
]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        metavar="NAME",
        rich_help_panel=PANEL,
        help="With tokens: answer only by this name. Repeatable; default any.",
    ),
]
TrustedProxy = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        metavar="CIDR",
        rich_help_panel=PANEL,
        help="Believe X-Forwarded-For, -Proto and -Host from there alone. Repeatable, or by commas.",
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        rich_help_panel=PANEL,
        help="Serve HTTPS with this certificate (PEM, with its chain).",
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option("--tls-key", metavar="FILE", rich_help_panel=PANEL, help="Its key (PEM)."),
]


async def check_tokens(shell: Context, settings: Settings) -> None:
    """Refuses to start a server that asks for tokens where no token is valid."""
    from locktender.client.core import Core
    from locktender.client.tokens import AsyncTokens

    core = await Core.open(settings, engine=False)
    try:
        found = await AsyncTokens(core).list()
    finally:
        await core.close(0)
    if any(each.state == "valid" for each in found):
        return
    where = "" if shell.url is None else f" --url {shlex.quote(settings.shown_url)}"
    raise InvalidInput(
        f"requests need tokens here, and there is none in {settings.shown_url}.",
        field="auth",
        got="tokens",
        hint=f"Make one: locktender tokens create ops --scope admin{where}. Or leave out --host, or serve only"
        " /health, /ready, /metrics and /api/v1/demand with --no-api.",
    )
