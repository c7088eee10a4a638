"""What is written without rich is what rich writes, in a pipe and on a terminal."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import rich.markup

from locktender.base.names import without_controls
from locktender.cli import output, tables
from locktender.cli.output import Printer, escape, plain, plain_console

TEXTS = [
    "plain",
    "[bold]a[/] b [dim]c [red]d[/red][/]",
    "a [1] list, [] and \\[/] of \\[bold]text",
    "no \x1b[2J escape",
    "two\nlines\tof text",
    "Größe [cyan]été[/]",
    "ends with \\",
    ":smile: is no picture",
    "[bold]over\nthe end[/] of a line",
    "[red]a\n\n[dim]b\nc[/] d[/]\n",
]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def __init__(self, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.fixture(params=[False, True], ids=["pipe", "terminal"])
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal(request.param)
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return made


def both(
    stream: Terminal, what: Any, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> tuple[str, str]:
    """As it is written here, and by rich."""
    refused = list[object]()
    with monkeypatch.context() as patched:
        patched.setattr(output, "plain_console", lambda **_: refused.append(what))
        Printer(stream).print(what, **more)
    assert refused == []
    width = 200 if stream.isatty() else output.UNCUT
    theirs = Terminal(stream.isatty())
    console = plain_console(file=theirs, width=width, force_terminal=stream.isatty())
    console.print(what, **more)
    return stream.getvalue(), theirs.getvalue()


def visible(text: str) -> list[str]:
    """Each character with its style."""
    found, style = list[str](), ""
    for code, character in re.findall(r"\x1b\[([0-9;]*)m|(.|\n)", text):
        if character:
            found.append(f"{style}{character}" if character.strip() else character)
        else:
            style = "" if code == "0" else code
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_written_as_rich_writes_it(
    text: str, stream: Terminal, monkeypatch: pytest.MonkeyPatch
):
    ours, theirs = both(stream, text, monkeypatch, soft_wrap=True)
    assert visible(ours) == visible(theirs)


def test_a_table_is_written_as_rich_writes_it(stream: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "_columns", lambda: 200)
    rows = [["06gy", "[green]succeeded[/]", "7", "a=b"], ["06gz", "queued", "1,000", "Größe 漢字"]]
    ours, theirs = both(stream, tables.table("run", "state", ">n", "tags…", rows=rows), monkeypatch)
    assert visible(ours) == visible(theirs)


def test_a_table_that_does_not_fit_is_cut_by_rich(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "_columns", lambda: 20)
    assert tables.table("run", "tags…", rows=[["06gy", "x" * 30]]).lines() is None
    assert tables.table("run", "tags", rows=[["06gy", "x" * 30]]).lines() is None


@pytest.mark.parametrize(
    "text", [*TEXTS, "[bold]", "\\[bold]", "\\\\[a]", "[1]", "x\\", "[@a] [#b]"]
)
def test_escaped_text_is_the_text_itself(text: str):
    assert escape(text) == rich.markup.escape(text)
    theirs = rich.markup.render(escape(text), emoji=False).plain
    assert without_controls(plain(escape(text))) == without_controls(theirs)
