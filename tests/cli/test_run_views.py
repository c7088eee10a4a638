"""What the command line shows of runs: times that agree, changes in the order in which they came."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from locktender import NotFound, RunFailed, embedded, flow, step
from locktender.base.clock import SECOND
from locktender.base.config import load
from locktender.base.graph import Graph
from locktender.base.ids import RunId
from locktender.base.model import RunRow
from locktender.cli import events as cli_events
from locktender.cli import runs
from locktender.cli.context import Context, log_lines, start_logging
from locktender.cli.dev import DevScreen, Scene
from locktender.cli.errors import show
from locktender.cli.output import plain_console
from locktender.cli.run_flow import Following, summary
from locktender.cli.run_picture import Picture
from locktender.cli.run_view import view_of
from locktender.cli.tables import lasted, shown, tags
from locktender.client.views import RunInfo, instant
from locktender.testing import eventually


def row(seq: int, state: str, queued: int, started: int = 0, ended: int = 0) -> RunRow:
    return RunRow(
        seq=seq,
        id=RunId(f"run{seq}".ljust(26, "0")),
        flow="f",
        graph="",
        params=b"{}",
        consts=b"[]",
        tags={},
        priority=0,
        key=None,
        kind="flow",
        generation=0,
        state=state,
        verdict=None,
        lane=0,
        waits_for=None,
        queued_at=queued * SECOND,
        started_at=started * SECOND,
        ended_at=ended * SECOND,
        deadline_at=None,
        queue_timeout_us=None,
        dispatch_deadline_us=None,
        output=None,
        error=None,
    )


def text_of(*shown: Any) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(*shown)
    return cast("io.StringIO", console.file).getvalue()


@pytest.mark.parametrize(
    ("run", "took"),
    [
        (row(1, "succeeded", 10, 15, 18), "3s"),
        (row(1, "running", 10, 15), "5s"),
        (row(1, "cancelled", 10, 0, 12), "-"),
    ],
)
def test_a_run_took_as_long_in_show_as_in_list(run: RunRow, took: str):
    info = RunInfo.of(run)
    view = view_of(run, Graph("f", ()), [], None, 20 * SECOND)
    assert lasted(info.started_at, info.ended_at, instant(20 * SECOND)) == took
    assert text_of(Picture(view, 20)).splitlines()[0].endswith(f" {took}")
    if run.state == "succeeded":
        assert "in 3s:" in summary(view)


def test_dev_tells_changes_in_the_order_in_which_they_came():
    # One after the other: the later one went first, having the higher priority.
    runs = [row(2, "succeeded", 11, 12, 14), row(1, "running", 10, 15), row(3, "queued", 16)]
    console = Console(file=io.StringIO(), width=100)
    screen = DevScreen(console, "dev", plain=True)
    screen.show(Scene(instant(20 * SECOND), [RunInfo.of(each) for each in runs], [], 1, 1))
    lines = cast("io.StringIO", console.file).getvalue().splitlines()[1:]
    assert [(line[:4], line.split()[2]) for line in lines] == [
        ("run2", "succeeded"),
        ("run1", "running"),
        ("run3", "queued"),
    ]


@pytest.mark.parametrize(
    ("limit", "source", "said"),
    [
        (4, "declared", ""),
        (4, "live", ""),
        (3, "live", "live limit of 3, which stands above --pool"),
        (3, "declared", "has a limit of 3, not what --pool asks for"),
        (None, "none", "has a limit of unlimited"),
    ],
)
def test_a_pool_that_is_not_as_asked_is_noted_whoever_set_it(
    tmp_path: Path, limit: int | None, source: str, said: str
):
    told: list[str] = []
    shell = cast("Context", SimpleNamespace(note=told.append))
    settings = load(tmp_path, {}, {"pools": {"db": 4}})
    text = "unlimited" if limit is None else str(limit)
    pool = SimpleNamespace(limit=limit, source=source, limit_text=text)
    engine = cast("Any", SimpleNamespace(pools=SimpleNamespace(get=lambda _: pool)))
    following = Following(shell, settings, plain=True, quiet=False)
    following._note_overruled(engine, ["db"])  # pyright: ignore[reportPrivateUsage]
    assert len(told) == bool(said)
    assert said in "".join(told)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;ZXZpbA==\x07clip", "clip"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;unfinished", ""),
        ("a\rb\x9b2Jc\x07\x7f\x00", "abc"),
        ("two\nlines\tand [bold]ü[/]", "two\nlines\tand [bold]ü[/]"),
    ],
)
def test_a_bodys_words_are_no_commands_to_the_terminal(said: str, read: str):
    assert Text.from_markup(shown(said)).plain == read


def test_logs_and_errors_are_shown_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    evil = "\x1b[2Jgone"

    @step(name="say_evil")
    async def say() -> None:
        logging.getLogger("tests.evil").warning(evil)
        raise ValueError(evil)

    @flow(name="evil")
    def evil_flow() -> Any:
        return say()

    monkeypatch.chdir(tmp_path)
    with embedded(str(tmp_path / "engine.db")) as engine:
        run = engine.submit(evil_flow)
        with pytest.raises(RunFailed):
            run.result("60s")
    shell = Context(url=str(tmp_path / "engine.db"))

    runs.logs(shell, run.id)
    runs.show(shell, run.id, tasks=True)

    read = capsys.readouterr().out
    assert read.count("gone") == 4  # logged, the error, its traceback, the task
    assert "\x1b[2J" not in read
    runs.logs(Context(url=shell.url, json=True), run.id)
    assert "\\u001b[2Jgone" in capsys.readouterr().out
    for follow in (False, True):
        with pytest.raises(NotFound, match=f"run {run.id} has no task 9"):
            runs.logs(shell, run.id, task="9", follow=follow)


def test_a_task_that_logged_nothing_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Also one that does not exist yet."""

    @step(name="says_nothing")
    async def silent() -> None: ...

    @flow(name="silent")
    def silent_flow() -> Any:
        return silent()

    with embedded(str(tmp_path / "engine.db")) as engine:
        run = engine.submit(silent_flow)
        run.result("60s")
        [task] = run.tasks()
    shell = Context(url=str(tmp_path / "engine.db"), json=True)
    for number in (task.id, task.id + 5):
        runs.logs(shell, run.id, task=str(number))
        assert json.loads(capsys.readouterr().out) == []


def test_a_task_that_backs_off_shows_no_time_that_grows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    @step(name="fails_at_first", retries=1, retry_delay="1h")
    async def fails() -> None:
        raise ValueError("no")

    @flow(name="backs_off")
    def backs_off() -> Any:
        return fails()

    with embedded(str(tmp_path / "engine.db")) as engine:
        run = engine.submit(backs_off)
        eventually(
            lambda: [(each.state, each.attempt) for each in run.tasks()] == [("requested", 1)]
        )
        runs.show(Context(url=str(tmp_path / "engine.db")), run.id, tasks=True)
        run.cancel()
    [line] = [each for each in capsys.readouterr().out.splitlines() if "requested" in each]
    assert line.split()[2:5] == ["requested", "1", "-"]


def test_no_text_of_a_user_commands_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    evil = "\x1b]0;owned\x07\x9b2J\x1b[31mred"

    @step(name="fail_evil", queue_timeout="1h")
    async def fail() -> None:
        raise ValueError(evil)

    @flow(name="failing_evil")
    def failing() -> Any:
        return fail()

    monkeypatch.chdir(tmp_path)
    with embedded(str(tmp_path / "engine.db")) as engine:
        run = engine.submit(failing)
        with pytest.raises(RunFailed) as failed:
            run.result("60s")
        engine.limits.pause()
        engine.runs.cancel(engine.submit(failing).id, reason=evil)
        shell = Context(url=str(tmp_path / "engine.db"))
        runs.list_(shell)
        runs.show(shell, run.id, tasks=True)
        cli_events.events(shell)
        show(failed.value, shell)
        runs.show(Context(url=shell.url, json=True), run.id)

    captured = capsys.readouterr()
    *read, data = captured.out.splitlines()
    assert not set("".join(read) + captured.err) & set("\x1b\x07\x9b")
    assert sum("red" in line for line in read) >= 2
    assert "red" in captured.err
    assert json.loads(data)["run"]["error"]["message"] == evil
    assert tags({"team": evil}) == "team=red"


@pytest.mark.parametrize("what", [Text("a\x1b[31mb"), "a\x1b[31mb", Panel("a\x1b[31mb")])
def test_a_console_writes_only_its_own_controls(what: Any):
    out = io.StringIO()
    console = plain_console(file=out, force_terminal=True, width=20)

    console.print(what, style="bold")

    assert "\x1b[1m" in out.getvalue()
    assert "ab" in out.getvalue()
    assert "\x1b[31m" not in out.getvalue()


@pytest.mark.parametrize("start", [log_lines, start_logging])
def test_a_line_of_a_log_is_plain(start: Any, capsys: pytest.CaptureFixture[str]):
    """And has no blanks at its end where it goes to a file."""
    locktender = logging.getLogger("locktender")
    before = locktender.handlers[:], locktender.level, locktender.propagate
    try:
        start(Context(), "info")
        locktender.warning("step %s", "a\x1b[31mb")
    finally:
        locktender.handlers[:], locktender.level, locktender.propagate = before

    assert re.search(r"WARNING +step ab\n", capsys.readouterr().err)
