"""`explain`: the cause of an error code and what to do."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from locktender.cli.context import Context, command

PANEL = "Beside a live engine, or without one"


def register(app: typer.Typer) -> None:
    command(app, "explain", panel=PANEL)(explain)


def explain(
    shell: Context,
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE", help="A code, the class of an error, or a failure; without it: all."
        ),
    ] = None,
) -> None:
    """What an error code means, and what to do about it.

    locktender explain admission_rejected
    """
    from locktender.base.errors import NotFound
    from locktender.base.names import nearest
    from locktender.cli.error_codes import CODES

    code = _code_of_class(code)
    if code is not None and code not in CODES:
        raise NotFound(
            f"no error of Locktender has the code {code!r}.",
            field="code",
            hint="If a step raised it: locktender runs show RUN has its traceback."
            if code[:1].isupper()
            else nearest(code, CODES, cutoff=0.6) or "To list all codes: locktender explain",
        )
    found = CODES if code is None else {code: CODES[code]}
    if shell.json:
        shell.data({name: {"cause": each.cause, "fix": each.fix} for name, each in found.items()})
        return
    for name, each in sorted(found.items()):
        shell.out.print(Text(name, style="bold"))
        shell.out.print(Text(f"  cause: {each.cause}"), soft_wrap=True)
        shell.out.print(Text(f"  fix:   {each.fix}"), soft_wrap=True)


def _code_of_class(name: str | None) -> str | None:
    """`InvalidFlow`, as a traceback has it, is `invalid_flow`; a code stays what it is."""
    import locktender
    from locktender.base.errors import LocktenderError

    found = getattr(locktender, name, None) if name in locktender.__all__ else None
    if name is None or not isinstance(found, type) or not issubclass(found, LocktenderError):
        return name
    return found.code
