"""What a command prints. Text with markup and tables that fit are written here; all else is rich's.

To load rich takes a fifth of the time of a command that reads a store, and most commands print nothing that
needs it. Both write the same (`tests/cli/test_output.py`).

Tags, keys, names and messages come from any program that may submit a run, and an escape sequence in them can
overwrite a terminal or fill its clipboard. So control characters are removed from all text for people.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

from locktender.base.names import without_controls

if TYPE_CHECKING:
    from rich.console import Console

UNCUT = 10_000
"""Columns of what is read by another program: nothing is cut or wrapped for it."""
_TAG = re.compile(r"(\\*)\[([a-z#/@][^[]*?)]")
_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
_OWN_WAY = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables by which users ask for other colours: rich knows them all."""


def escape(text: str) -> str:
    """Text that is not markup."""
    found = _TAG.sub(lambda match: f"{match[1] * 2}\\{match[0][len(match[1]) :]}", text)
    return f"{found}\\" if found.endswith("\\") and not found.endswith("\\\\") else found


def parts_of(markup: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Pieces of text, and the styles of each."""
    at, styles = 0, list[str]()
    for match in _TAG.finditer(markup):
        if match.start() > at:
            yield markup[at : match.start()].replace("\\[", "["), tuple(styles)
        at = match.end()
        slashes, escaped = divmod(len(match[1]), 2)
        if slashes:
            yield "\\" * slashes, tuple(styles)
        if escaped:
            yield f"[{match[2]}]", tuple(styles)
        elif not match[2].startswith("/"):
            styles.append(match[2])
        elif styles:
            styles.pop()
    if at < len(markup):
        yield markup[at:].replace("\\[", "["), tuple(styles)


def plain(markup: str) -> str:
    return "".join(text for text, _ in parts_of(markup))


def width_of(stream: TextIO) -> int | None:
    """None: the terminal's own, or what COLUMNS says."""
    return None if stream.isatty() or os.environ.get("COLUMNS") else UNCUT


def plain_console(**options: Any) -> Console:
    """A console of rich that writes no control character but its own."""
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 — the broken pipe, of which rich would make exit code 1

        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                text, style, control = segment
                yield segment if control else Segment(without_controls(text), style)

    return PlainConsole(highlight=False, emoji=False, **options)


class Printer:
    """Takes what a console of rich takes."""

    def __init__(self, stream: TextIO, *, stderr: bool = False) -> None:
        self._stream = stream
        self._stderr = stderr

    @cached_property
    def console(self) -> Console:
        return plain_console(stderr=self._stderr, width=width_of(self._stream))

    @cached_property
    def _simple(self) -> bool:
        """Nothing is asked for but text, or the colours of any terminal."""
        name = (getattr(self._stream, "encoding", None) or "").lower()
        own_way = any(each in os.environ for each in _OWN_WAY)
        known = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        return name.startswith("utf") and not own_way and (known or not self._stream.isatty())

    def print(self, what: Any = "", *, soft_wrap: bool = False, **more: Any) -> None:
        lines: Iterable[str] | None = None
        if self._simple and not more and "console" not in self.__dict__:
            if isinstance(what, str):
                lines = [what] if soft_wrap else None
            elif hasattr(what, "lines"):
                lines = what.lines()
        written = None if lines is None else [self._written(each) for each in lines]
        if written is None or None in written:
            self.console.print(what, soft_wrap=soft_wrap, **more)
            return
        self._stream.write("".join(f"{each}\n" for each in written))
        self._stream.flush()

    def _written(self, markup: str) -> str | None:
        """None: it has a style that is not known here, or a tab beside one, whose width depends on its place."""
        if "\t" in markup and "[" in markup:
            return None
        coloured, found = self._stream.isatty(), ""
        for text, styles in parts_of(markup):
            words = [word for style in styles for word in style.split()]
            if any(word not in _CODES for word in words):
                return None
            codes = ";".join(sorted({_CODES[word] for word in words}, key=int))
            # A style goes on over the end of a line, and is written anew in each.
            for number, line in enumerate(text.split("\n")):
                readable = without_controls(line).expandtabs()
                styled = f"\x1b[{codes}m{readable}\x1b[0m" if codes and coloured else readable
                found += ("\n" if number else "") + (styled if readable else "")
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.console, name)
