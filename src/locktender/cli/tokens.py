"""`tokens`: who may ask the HTTP API, and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from locktender.cli.context import Context, command, group
from locktender.cli.tables import shown

if TYPE_CHECKING:
    from locktender.client.tokens import TokenInfo

NOTHING = "[dim]No tokens yet.[/] Make one: locktender tokens create NAME --scope read"


def register(app: typer.Typer) -> None:
    noun = group(app, "tokens", "Tokens of the HTTP API: create, list, revoke.")
    command(noun, "create")(create)
    command(noun, "list")(list_)
    command(noun, "revoke")(revoke)


def create(
    shell: Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Recorded with every change that is made with it.")
    ],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="read, submit, operate or admin: each includes those before it. Repeatable.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag",
            metavar="KEY=VALUE",
            help="It sees, submits and changes only what has this tag. Repeatable.",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="30d; without: never.")
    ] = None,
) -> None:
    """Make a token and print it, this once. The store has only its hash."""
    from locktender.cli.arguments import tags

    with shell.connect(create=True) as client:
        made = client.tokens.create(
            name, scope or (), tags=tags(tag) if tag else None, expires=expires
        )
    if shell.json:
        shell.data(made)
        return
    # Alone on stdout: a script keeps it in a variable.
    typer.echo(made.token)
    shell.note(
        f"Token {shown(made.info.name)} ({_rights(made.info)}) is shown this once."
        f" Take it away: locktender tokens revoke {made.info.id}"
    )


def list_(shell: Context) -> None:
    """All tokens: what each may do, when it expires, when it was last used."""
    from locktender.cli.tables import ago, now, table

    with shell.connect() as client:
        found = client.tokens.list()
    if shell.json:
        shell.data(found)
        return
    if not found:
        shell.say(NOTHING)
        return
    since = now()
    rows = [
        [
            shown(each.name),
            each.id,
            each.state,
            # The largest: it includes the others.
            each.scopes[-1] if each.scopes else "nothing",
            shown(_tags(each)),
            ago(each.created_at, since),
            ago(each.expires_at, since) if each.expires_at else "never",
            ago(each.used_at, since) if each.used_at else "never",
        ]
        for each in found
    ]
    heads = ("name…", "id", "state", "may", "tags…", "created", "expires", "used")
    shell.out.print(table(*heads, rows=rows))


def revoke(
    shell: Context,
    token: Annotated[str, typer.Argument(metavar="ID|NAME", help="As tokens list shows it.")],
) -> None:
    """Take a token away, with its browser sessions and the tokens that were made with it, within two seconds."""
    with shell.connect() as client:
        info = client.tokens.revoke(token)
    shell.done(f"token {shown(info.name)} ({info.id}) is revoked", info)


def _tags(info: TokenInfo) -> str:
    return ", ".join(f"{key}={value}" for key, value in info.tags.items()) or "all"


def _rights(info: TokenInfo) -> str:
    of = f", only of {_tags(info)}" if info.tags else ""
    return f"{', '.join(info.scopes)}{of}"
