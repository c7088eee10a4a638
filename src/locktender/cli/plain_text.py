"""Texts of users on a terminal: as text, never as a command to it.

Tags, keys, names, messages and logs are anybody's who may submit a run, and a
terminal obeys what it is shown: an escape sequence can colour, overwrite, rename
the window or fill the clipboard. So everything that is written for people goes
through a console that leaves such characters away, whoever forgot to. JSON is
for programs and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from locktender.base.terminal import without_controls


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
