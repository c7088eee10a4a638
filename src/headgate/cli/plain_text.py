"""Texts of users on a terminal: as text, never as a command to it.

Tags, keys, names, messages and logs are anybody's who may submit a run, and a
terminal obeys what it is shown: an escape sequence can colour, overwrite, rename
the window or fill the clipboard. So everything that is written for people goes
through a console that leaves such characters away, whoever forgot to. JSON is
for programs and stays as it is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

_CONTROLS: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, movements of the cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links, the clipboard
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"  # turn the order of what follows
)


def without_controls(text: str) -> str:
    """Only what can be read, and the ends of lines."""
    return _CONTROLS.sub("", text)


def shown(text: str) -> str:
    """A text of the user's, as text: neither our markup nor a command to the terminal that shows it."""
    return escape(without_controls(text))


class PlainConsole(Console):
    """Writes no control character but its own."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(without_controls(text), style)


class PlainLines(logging.Formatter):
    """Lines of a log, which name steps and tell of their errors."""

    def format(self, record: logging.LogRecord) -> str:
        return without_controls(super().format(record))
