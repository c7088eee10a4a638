"""What is written without rich is what rich writes, in a pipe and on a terminal."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import rich.markup

from locktender.base.names import without_controls
from locktender.cli import output, run_picture, tables
from locktender.cli.output import Printer, escape, plain, plain_console
from locktender.cli.run_picture import Picture
from locktender.cli.run_view import RunView, StepView

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
    monkeypatch.setattr(tables, "columns_shown", lambda: 200)
    rows = [["06gy", "[green]succeeded[/]", "7", "a=b"], ["06gz", "queued", "1,000", "Größe 漢字"]]
    ours, theirs = both(stream, tables.table("run", "state", ">n", "tags…", rows=rows), monkeypatch)
    assert visible(ours) == visible(theirs)


def test_a_table_that_does_not_fit_is_cut_by_rich(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "columns_shown", lambda: 20)
    assert tables.table("run", "tags…", rows=[["06gy", "x" * 30]]).lines() is None
    assert tables.table("run", "tags", rows=[["06gy", "x" * 30]]).lines() is None


@pytest.mark.parametrize(
    "text", [*TEXTS, "[bold]", "\\[bold]", "\\\\[a]", "[1]", "x\\", "[@a] [#b]"]
)
def test_escaped_text_is_the_text_itself(text: str):
    assert escape(text) == rich.markup.escape(text)
    theirs = rich.markup.render(escape(text), emoji=False).plain
    assert without_controls(plain(escape(text))) == without_controls(theirs)


STEPS = [
    StepView("load", 1, 1, 0, 0, 0, 0, 0, 0, 0, ()),
    StepView("a step with a long name", 9, 3, 1, 0, 0, 0, 2, 1, 2, ("pool db: 2 of 2 [x] in use",)),
    StepView("été", None, 0, 0, 0, 0, 0, 0, 0, 0, ("after load",)),
]


def pictured(monkeypatch: pytest.MonkeyPatch, columns: int) -> Picture:
    monkeypatch.setattr(run_picture, "columns_shown", lambda: columns)
    notes = ("paused by [ops]",)
    return Picture(RunView("r" * 26, "app:flow", "queued", 5_000_000, tuple(STEPS), notes), 99)


def test_a_run_is_pictured_as_rich_draws_it(stream: Terminal, monkeypatch: pytest.MonkeyPatch):
    ours, theirs = both(stream, pictured(monkeypatch, 200), monkeypatch)

    assert visible(ours) == visible(theirs)
    lines = ["".join(each[-1] for each in visible(line)) for line in ours.splitlines()]
    assert lines == [
        "flow rrrrrrrrrrrr queued 5s",
        "  paused by [ops]",
        "  load                 ━━━━━━━━━━     1/1",
        "  a step with a long … ━━━━╌╌╌╌╌╌     4/9 1 failed, 2 running, 1 offered, 2 waiting",
        f"{' ' * 42}└ pool db: 2 of 2 [x] in use",
        "  été                  ╌╌╌╌╌╌╌╌╌╌     0/? after load",
        f"{'━' * 20}╸{'╌' * 25} 5/11 45 %",
    ]


def test_a_picture_that_does_not_fit_is_cut_by_rich(monkeypatch: pytest.MonkeyPatch):
    assert pictured(monkeypatch, 60).lines() is None
