"""What a body sees of itself, in each executor: `current()`, what it logs, how far it is, its secrets."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from locktender import InvalidInput, LocktenderError, current
from locktender.base import codec
from locktender.base.clock import SystemClock
from locktender.base.model import (
    MAX_BYTES,
    MAX_LINE,
    MAX_LINES,
    AttemptLog,
    LogLine,
    Progress,
    decode_log,
)
from locktender.base.secrets import HIDDEN, Redactor
from locktender.client.views import instant
from locktender.testing.processes import source
from locktender.worker.executors import logs
from locktender.worker.executors.async_ import AsyncExecutor
from locktender.worker.executors.logs import CapturedLines
from locktender.worker.executors.process import ProcessExecutor
from locktender.worker.executors.protocol import Attempt, Outcome
from locktender.worker.executors.sources import load
from locktender.worker.executors.thread import ThreadExecutor
from locktender.worker.reports import MAX_MESSAGE, ProgressReports, progress_of

steps: Any = load(source(Path(__file__).parents[1] / "steps" / "inside_steps.py"))
every = pytest.mark.parametrize("kind", ["async", "thread", "process"])
_MAKE: dict[str, Any] = {
    "async": AsyncExecutor,
    "thread": ThreadExecutor,
    "process": ProcessExecutor,
}


class Bench:
    """One executor, and the progress that its bodies report."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind = kind
        self.root = root
        self.reports = ProgressReports()
        self.executor = _MAKE[kind](2, clock=SystemClock())
        self._tokens = itertools.count(1)

    def start(
        self, body: str, *args: Any, **fields: Any
    ) -> tuple[Attempt, asyncio.Future[Outcome]]:
        definition = steps.BODIES[body][self.kind].definition
        token = next(self._tokens)
        raw = codec.render_call([codec.encode(each) for each in args], {})
        job = Attempt(token + 10, token, "the-run", definition, raw, work_root=self.root,
                  flow="the-flow", progress=self.reports, **fields)  # fmt: skip
        ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.executor.start(job, lambda _, outcome: ended.set_result(outcome))
        return job, ended

    async def run(self, body: str, *args: Any, **fields: Any) -> Outcome:
        async with asyncio.timeout(60):
            return await self.start(body, *args, **fields)[1]

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.executor.close(0)


async def until(condition: Callable[[], object]) -> None:
    """A bounded wait for what another thread or process does."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def lines_of(outcome: Outcome) -> list[str]:
    assert outcome.log is not None
    return [line.text for line in decode_log(outcome.log).lines]


# -- what it is told ---------------------------------------------------------------------------------


@every
async def test_a_body_knows_its_attempt(kind: str, tmp_path: Path):
    async with Bench(kind, tmp_path) as bench:
        outcome = await bench.run("ask", number=3, timeout_us=3_600_000_000)

    assert outcome.output is not None, outcome.failure
    told = json.loads(outcome.output)
    left, deadline = told.pop("left"), told.pop("deadline")
    assert told == {
        "run": "the-run", "flow": "the-flow", "step": f"ask_{kind}", "task": 11, "attempt": 3,
        "token": 1, "again": 1, "workdir": str(tmp_path / "11" / "1"), "stop": False,
    }  # fmt: skip
    assert 3_500 < left <= 3_600
    assert abs(deadline - (time.time() + left)) < 100
    assert outcome.log is None


def test_outside_there_is_none_and_the_error_says_so():
    assert current() is None
    with pytest.raises(
        LocktenderError, match=r"no step's body is running here\. Call it inside a step"
    ):
        current(required=True)


def test_a_step_called_as_a_function_has_none():
    with pytest.raises(LocktenderError, match="no step's body"):
        steps.ask()


async def test_a_thread_sees_that_it_was_told_to_stop(tmp_path: Path):
    async with Bench("thread", tmp_path) as bench:
        job, ended = bench.start("silent")
        bench.executor.stop(job.token, "cancel")
        await ended
        assert job.stop_reason == "cancel"


# -- what it logs ------------------------------------------------------------------------------------


@every
async def test_lines_are_kept_with_their_attempt(kind: str, tmp_path: Path):
    async with Bench(kind, tmp_path) as bench:
        first, second = await asyncio.gather(
            bench.run("talk", "one"), bench.run("talk", "two", number=2)
        )

    assert second.state == "completed"
    assert lines_of(second) == ["attempt 2 says two", "a library says two"]
    said = lines_of(first)
    assert said[:2] == ["attempt 1 says one", "a library says one"]
    assert said[2].startswith("it went wrong\nTraceback")
    assert "OSError: the cause" in said[2]
    log = decode_log(first.log or b"")
    assert [line.level for line in log.lines] == [logging.INFO, logging.WARNING, logging.ERROR]
    assert [line.logger for line in log.lines] == [
        "locktender.step",
        "tests.inside",
        "locktender.step",
    ]
    assert abs(log.lines[0].at / 1e6 - time.time()) < 100


@every
async def test_a_body_that_logs_nothing_keeps_nothing(kind: str, tmp_path: Path):
    async with Bench(kind, tmp_path) as bench:
        assert await bench.run("silent") == Outcome("completed", b"null")


@every
@pytest.mark.parametrize(("lines", "size"), [(MAX_LINES + 50, 3), (200, 2_000)])
async def test_what_is_kept_is_bounded_and_says_what_it_lacks(
    kind: str, lines: int, size: int, tmp_path: Path
):
    async with Bench(kind, tmp_path) as bench:
        outcome = await bench.run("chatter", lines, size)

    log = decode_log(outcome.log or b"")
    assert log.dropped + len(log.lines) == lines
    assert log.dropped > 0
    assert len(log.lines) <= MAX_LINES
    assert len(outcome.log or b"") <= MAX_BYTES + 1_000
    # The newest are kept, in order.
    numbers = [int(line.text.split()[0]) for line in log.lines]
    assert numbers == list(range(lines - len(numbers), lines))


def test_a_long_line_is_cut():
    async def body() -> None:
        bench = Bench("async", Path())
        outcome = await bench.run("chatter", 1, 3 * MAX_LINE)
        (line,) = lines_of(outcome)
        assert len(line) < MAX_LINE + 100
        assert line.endswith("characters more)")

    asyncio.run(body())


async def test_a_killed_child_has_told_most_of_what_it_said(tmp_path: Path):
    async with Bench("process", tmp_path) as bench:
        job, ended = bench.start("hang_after", "farewell", timeout_us=3_600_000_000)
        await until(lambda: job.lines is not None)  # told while the body hangs
        bench.executor.stop(job.token, "timeout")
        outcome = await ended

    assert outcome.state == "timed_out"
    assert lines_of(outcome) == ["last words: farewell"]


SCRIPT = """
import asyncio, logging
from locktender.base.clock import SystemClock
from locktender.worker.executors.async_ import AsyncExecutor
from locktender.worker.executors.protocol import Attempt

async def body():
    logging.getLogger("app").warning("a warning")
    logging.getLogger("app").info("an info")

class Step:
    name, retry_on, fn = "s", None, staticmethod(body)
    def decode_call(self, raw): return (), {}
    def encode_result(self, value): return b"null"

async def main():
    executor = AsyncExecutor(1, clock=SystemClock())
    if CONFIGURED:
        logging.basicConfig(level="INFO", format="<%(name)s> %(message)s")
    ended = asyncio.get_running_loop().create_future()
    executor.start(Attempt(1, 1, "r", Step(), b""), lambda _, outcome: ended.set_result(outcome))
    print((await ended).log.decode())

asyncio.run(main())
"""


@pytest.mark.parametrize("configured", [False, True])
def test_the_programs_own_logging_goes_on_as_before(configured: bool, tmp_path: Path):
    """With nothing set up warnings are printed; `basicConfig` still works after an engine has started."""
    script = SCRIPT.replace("CONFIGURED", str(configured))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    if configured:
        assert done.stderr.splitlines() == ["<app> a warning", "<app> an info"]
        assert "an info" in done.stdout
    else:
        assert done.stderr.splitlines() == ["a warning"]
        assert "an info" not in done.stdout
    assert "a warning" in done.stdout


async def test_others_who_wrap_logging_too_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    heard: list[str] = []
    async with Bench("thread", tmp_path) as bench:
        ours = logging.Logger.callHandlers

        def theirs(self: logging.Logger, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())
            ours(self, record)

        monkeypatch.setattr(logging.Logger, "callHandlers", theirs)
        Bench("async", tmp_path)
        outcome = await bench.run("talk", "both", number=2)

    assert "a library says both" in heard
    assert "a library says both" in lines_of(outcome)


def test_all_attempts_together_are_bounded_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "MAX_KEPT_BYTES", logs._all.bytes + 1_000)
    first, second = CapturedLines(), CapturedLines()
    first.add(LogLine(0, 20, "x", "a" * 100) for _ in range(5))

    second.add(LogLine(0, 20, "x", "b" * 100) for _ in range(5))

    kept, cut = first.take(), second.take()
    assert (len(kept.lines), kept.dropped) == (5, 0)
    assert (len(cut.lines), cut.dropped) == (2, 3)
    before = logs._all.bytes
    second.body()
    second.add([LogLine(0, 20, "x", "too late")])
    assert logs._all.bytes == before
    assert second.take() == AttemptLog(0, [])


def test_lines_of_two_threads_are_all_counted():
    lines = CapturedLines()

    def add() -> None:
        for number in range(1_000):
            lines.add((LogLine(number, 20, "x", "text"),))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = lines.take()
    assert log.dropped + len(log.lines) == 4_000
    assert lines.take() == AttemptLog(0, [])


@every
async def test_an_odd_record_is_kept_in_a_form_that_can_be_stored(kind: str, tmp_path: Path):
    async with Bench(kind, tmp_path) as bench:
        outcome = await bench.run("log_oddly")

    assert outcome.output == b"1", outcome.failure
    log = decode_log(outcome.log or b"")
    assert [line.text for line in log.lines] == [
        "by an odd name", "at an odd level", "at an odd time", "at an odd time"
    ]  # fmt: skip
    assert log.lines[0].logger.startswith("half\\udc80x")
    assert all(len(line.logger) <= logs.MAX_NAME for line in log.lines)
    assert all(0 <= line.level <= logs.MAX_LEVEL for line in log.lines)
    for line in log.lines:
        instant(line.at)


async def test_an_end_is_told_even_if_what_was_said_cannot_be_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with Bench("thread", tmp_path) as bench:
        job, ended = bench.start("silent")
        job.lines = CapturedLines()
        job.lines.add([LogLine(0, 20, "half\udc80", "x")])
        async with asyncio.timeout(60):
            outcome = await ended

    assert (outcome.state, outcome.log) == ("completed", None)
    assert f"failed to keep the notes and log of task {job.task} (token {job.token})" in caplog.text


@every
async def test_a_message_without_a_text_does_not_fail_the_body(kind: str, tmp_path: Path):
    async with Bench(kind, tmp_path) as bench:
        outcome = await bench.run("log_the_unprintable")

    assert outcome.output == b"1", outcome.failure
    assert lines_of(outcome) == [
        "<Unprintable> (cannot be formatted: RuntimeError)",
        "%d (cannot be formatted: TypeError)",
    ]


@every
async def test_a_text_that_logs_itself_comes_to_an_end(kind: str, tmp_path: Path):
    async with Bench(kind, tmp_path) as bench:
        outcome = await bench.run("log_an_echo")

    assert outcome.output == b"1", outcome.failure
    assert lines_of(outcome)[-1].endswith("echo")
    assert len(lines_of(outcome)) == logs.MAX_DEPTH


async def test_a_signal_handler_may_log_while_its_body_does(tmp_path: Path):
    async with Bench("process", tmp_path) as bench:
        outcome = await bench.run("log_by_signals", 0.5)

    assert outcome.output == b"1", outcome.failure
    assert {"a signal", "the body"} == set(lines_of(outcome))


# -- how far it is -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_progress_is_reported_until_the_attempt_ends(kind: str, tmp_path: Path):
    async with Bench(kind, tmp_path) as bench:
        path = tmp_path / "go"
        job, ended = bench.start("work_until", str(path))
        await until(bench.reports.notes)
        path.touch()
        await until(lambda: bench.reports.notes() == [Progress(job.token, 3, 4, "nearly there")])
        path.with_name("go.end").touch()
        await ended
        assert bench.reports.notes() == []


def test_progress_reports_are_bounded():
    reports = ProgressReports(most=3)
    for token in (1, 2, 3, 1, 4, 5):
        reports.put(Progress(token, token))
    assert [each.token for each in reports.notes()] == [1, 4, 5]
    reports.forget(4)
    reports.forget(99)
    assert [each.token for each in reports.notes()] == [1, 5]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1, "3", None, object(), 10**400])
def test_what_is_no_number_is_refused(wrong: Any):
    with pytest.raises(InvalidInput, match=r"progress takes numbers from 0 up, not done="):
        progress_of(1, wrong, None, "")


def test_a_message_is_cut_between_characters():
    said = progress_of(1, 1, 2, "ü" * 500 + "\ud800")
    assert len(said.message.encode()) <= MAX_MESSAGE
    assert set(said.message) == {"ü"}


# -- its secrets -------------------------------------------------------------------------------------


@pytest.fixture
def _hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HG_SECRET", 'pa"ss\nword/ß')
    monkeypatch.delenv("HG_NONE", raising=False)


@every
@pytest.mark.usefixtures("_hidden")
async def test_a_secret_arrives_and_is_hidden_in_all_a_body_says(kind: str, tmp_path: Path):
    from locktender import secret

    value = os.environ["HG_SECRET"]
    async with Bench(kind, tmp_path) as bench:
        given = secret("env:HG_SECRET")
        job, ended = bench.start("use", given, {"inner": [given]})
        used = await ended
        slipped = await bench.run("slip", given)
        leaked = await bench.run("leak", given)

    assert used.output == str(2 * len(value)).encode()
    assert lines_of(used)[0] == "using ***"
    for part in (value, 'pa\\"ss', 'pa"ss'):
        assert part.encode() not in (used.log or b"") + job.call
    assert slipped.failure is not None
    assert slipped.failure.message == "cannot log in with ***"
    assert "word/ß" not in (slipped.failure.traceback or "")
    assert leaked.output is None
    assert leaked.failure is not None
    assert leaked.failure.type == "secret_in_result"
    assert "env:HG_SECRET" in leaked.failure.message
    assert not leaked.failure.retryable


@every
async def test_a_secret_is_hidden_in_names_too(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from locktender import secret

    monkeypatch.setenv("HG_SECRET", "hunter2hunter2")
    async with Bench(kind, tmp_path) as bench:
        outcome = await bench.run("slip_by_names", secret("env:HG_SECRET"))

    assert outcome.failure is not None
    assert outcome.failure.type == "Refused_***"
    assert [line.logger for line in decode_log(outcome.log or b"").lines] == ["client.***"]
    assert "hunter2" not in str(outcome)


@every
@pytest.mark.usefixtures("_hidden")
async def test_a_missing_secret_fails_by_name_and_is_not_tried_again(kind: str, tmp_path: Path):
    from locktender import secret

    async with Bench(kind, tmp_path) as bench:
        outcome = await bench.run("use", secret("env:HG_NONE"))

    assert outcome.failure is not None
    assert outcome.failure.type == "secret_missing"
    assert "'HG_NONE'" in outcome.failure.message
    assert not outcome.failure.retryable


async def test_a_value_that_does_not_fit_the_annotation_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from locktender import secret

    monkeypatch.setenv("HG_SECRET", "not-a-number")
    async with Bench("thread", tmp_path) as bench:
        outcome = await bench.run("count_down", secret("env:HG_SECRET"))

    assert outcome.failure is not None
    assert outcome.failure.type == "invalid_arguments"
    assert "not-a-number" not in outcome.failure.message + (outcome.failure.traceback or "")


async def test_half_a_secret_is_not_left_where_a_message_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from locktender import secret

    monkeypatch.setenv("HG_SECRET", "s3cr3t" * 500)
    async with Bench("thread", tmp_path) as bench:
        outcome = await bench.run("slip", secret("env:HG_SECRET"))

    assert outcome.failure is not None
    assert "s3cr3t" not in outcome.failure.message + (outcome.failure.traceback or "")


@pytest.mark.parametrize("value", ['pa"ss\\wörd<é>', "tab\there", "smile 😀 x", 'it\'s "both"'])
@pytest.mark.parametrize(
    "written",
    [
        json.dumps,
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda text: json.dumps({"inner": json.dumps({"token": text})}),
        lambda text: repr(json.dumps([text])),
        repr,
        ascii,
        str,
    ],
)
def test_a_secret_is_found_however_it_was_written_out(value: str, written: Callable[[str], str]):
    text = written(f"a {value} b")

    hidden = Redactor({"env:X": value})(text)

    assert HIDDEN in hidden
    assert written(value).strip("'\"") not in hidden
    assert "wör" not in hidden
    assert "here" not in hidden


@pytest.mark.parametrize("wrong", ["", "hunter2", "env:", "env:A B", "vault:x", None, 3])
def test_a_secret_is_a_reference(wrong: Any):
    from locktender import secret

    with pytest.raises(InvalidInput, match=r"given by reference.*secret\(\"env:NAME\"\)") as caught:
        secret(wrong)
    assert "hunter2" not in str(caught.value.as_dict())


def test_a_secret_has_no_text_where_it_is_not_known():
    from locktender import secret

    given = secret("env:NAME")
    assert repr(given) == str(given) == "secret('env:NAME')"
    with pytest.raises(InvalidInput, match="Pass it to a step as an argument of its own"):
        f"{given}"
    assert codec.encode({"a": [given]}) == b'{"a":[{"$locktender.secret":"env:NAME"}]}'
    with pytest.raises(InvalidInput, match="reserved"):
        codec.encode({"$locktender.secret": "env:NAME"})
