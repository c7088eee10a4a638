"""Numbers on the command line: `-1` and `-5m` are values, not options."""

from __future__ import annotations

import re
from typing import Any, cast

from typer.core import TyperCommand

_NEGATIVE = re.compile(r"-\d\S*")
_HELD = "\u2212"
"""A minus sign that option parsers do not know."""


class NumberCommand(TyperCommand):
    """A command whose arguments may be negative numbers: `locktender pools set db -1`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        held = [f"{_HELD}{each[1:]}" if _NEGATIVE.fullmatch(each) else each for each in args]
        rest = super().parse_args(ctx, held)
        for key, value in ctx.params.items():
            ctx.params[key] = _released(value)
        return rest


def _released(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_HELD):
        return f"-{value[1:]}"
    if isinstance(value, list | tuple):
        return [_released(each) for each in cast("list[Any]", value)]
    return value


def number(text: str) -> int | str | bool | float:
    """The number that `text` is, for the checks behind to judge; text that is none stays text."""
    try:
        return int(text.replace("_", "")) if text.strip() == text else text
    except ValueError:
        pass
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text
