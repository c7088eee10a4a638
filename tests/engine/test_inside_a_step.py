"""What a body says of itself, seen from outside: progress, logs, secrets, with a real engine on a real file."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support import cli_harness

from locktender import (
    Client,
    InvalidFlow,
    RunFailed,
    RunState,
    TaskState,
    connect,
    connect_async,
    current,
    flow,
    secret,
    step,
)
from locktender.base.model import MAX_LINES
from locktender.testing import Engines, eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]

steps: Any = load(source(Path(__file__).parents[1] / "steps" / "inside_steps.py"))
every = pytest.mark.parametrize("kind", ["async", "thread", "process"])
TIMEOUT = "60s"
VALUE = "hunter2-and-more"


@pytest.fixture
def engine_settings() -> dict[str, Any]:
    return {"heartbeat": "200ms"}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HG_TEST_SECRET", VALUE)
    monkeypatch.delenv("HG_TEST_NONE", raising=False)


def stored(folder: Path) -> bytes:
    """Every byte beside the store: the file, its write-ahead log, blobs, work directories."""
    return b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())


@every
def test_a_body_knows_its_run_and_flow(engine: Client, kind: str):
    run = engine.submit(steps.call, "ask", kind, [])

    told = run.result(TIMEOUT)

    [task] = run.tasks()
    assert (told["run"], told["flow"]) == (run.id, run.info().flow)
    assert (told["task"], told["attempt"], told["step"]) == (task.id, 1, f"ask_{kind}")


@every
def test_logs_outlive_their_attempts(engine: Client, kind: str):
    run = engine.submit(steps.call, "talk", kind, ["hello"])
    assert run.result(TIMEOUT) == 2

    lines = run.logs()

    assert [(line.attempt, line.level, line.message.splitlines()[0]) for line in lines] == [
        (1, "INFO", "attempt 1 says hello"),
        (1, "WARNING", "a library says hello"),
        (1, "ERROR", "it went wrong"),
        (2, "INFO", "attempt 2 says hello"),
        (2, "WARNING", "a library says hello"),
    ]
    assert {line.name for line in lines} == {f"talk_{kind}"}
    [task] = run.tasks()
    assert run.logs(task.id) == lines
    assert run.logs(task.id + 1) == []
    assert len(run.logs(limit=2)) == 2


def test_what_was_dropped_is_said(engine: Client):
    run = engine.submit(steps.call, "chatter", "thread", [MAX_LINES + 7, 2])
    run.result(TIMEOUT)

    first, *rest = run.logs()

    assert first.message.startswith("7 earlier lines of this attempt were dropped")
    assert len(rest) == MAX_LINES
    assert rest[-1].message.startswith(f"{MAX_LINES + 6} ")


@flow
def hanging(text: str) -> None:
    return steps.BODIES["hang_after"]["process"].with_options(timeout="1h")(text)


def test_a_process_step_that_is_killed_has_its_last_words(engine: Client):
    """By its timeout or by whoever stops it; here when its worker has heard them."""
    run = engine.submit(hanging, "help")
    core: Any = engine._core
    executors = core.engine.worker._executors

    def heard() -> bool:
        of_process = executors._executors.get("process")
        running = [] if of_process is None else of_process._attempts.all()
        return any(each.attempt.lines is not None for each in running)

    eventually(heard, "60s", "the words")
    run.cancel()

    assert run.wait(TIMEOUT) is RunState.CANCELLED

    assert [line.message for line in run.logs()] == ["last words: help"]


@step
async def item(number: int) -> int:
    current(required=True).log.info("item %d", number)
    return number


@flow
def many(numbers: list[int]) -> list[int]:
    return item.map(numbers)


def test_each_item_of_a_map_has_its_own_lines(engine: Client):
    run = engine.submit(many, list(range(300)))
    run.result(TIMEOUT)

    lines = run.logs()

    assert sorted((line.index, line.message) for line in lines) == [
        (number, f"item {number}") for number in range(300)
    ]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_progress_is_seen_while_it_runs_and_gone_after(engine: Client, kind: str, tmp_path: Path):
    path = tmp_path / "go"
    run = engine.submit(steps.call, "work_until", kind, [str(path)])
    path.touch()

    def said() -> str:
        return str(next((task.progress for task in run.tasks()), None))

    eventually(lambda: said() == "3/4 nearly there", what="the progress")
    shown = locktender(engine, "runs", "show", run.id, "--tasks")
    assert "3/4 nearly" in shown
    path.with_name("go.end").touch()
    run.result(TIMEOUT)
    [task] = run.tasks()
    assert (task.state, task.progress) == (TaskState.COMPLETED, None)
    eventually(lambda: all(not row.progress for row in rows(engine)), what="the beat without it")


def rows(engine: Client) -> list[Any]:
    core: Any = engine._core
    return engine._bridge.call(core.store.workers())  # pyright: ignore


@every
@pytest.mark.parametrize("how", ["in the body", "in a thread of the body"])
def test_a_body_cannot_run_a_flow_in_a_second_engine(
    engine: Client, kind: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOCKTENDER_URL", "")  # a body of this process sets it
    (tmp_path / "other").mkdir()
    run = engine.submit(steps.call, "run_another", kind, [str(tmp_path / "other"), how])

    with pytest.raises(RunFailed, match="a second engine would start") as caught:
        run.result(TIMEOUT)

    assert "connect(url).submit(another" in caught.value.error_message
    assert list((tmp_path / "other").iterdir()) == []


def test_the_body_of_a_flow_cannot_run_a_flow(
    engine: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("LOCKTENDER_URL", str(tmp_path / "other" / "second.db"))

    with pytest.raises(InvalidFlow, match=r"in the body of a flow.*Call it there.*another\(...\)"):
        engine.submit(steps.runs_another, 1)

    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_body_may_open_an_engine_of_its_own_by_name(engine: Client, kind: str, tmp_path: Path):
    run = engine.submit(steps.call, "open_another", kind, [str(tmp_path)])

    assert run.result(TIMEOUT) == 2


@step
def connects() -> int:
    with connect() as client:
        return client.runs.count()


@step
async def connects_on_the_loop() -> int:
    async with connect_async() as client:
        return await client.runs.count()


@flow
def connecting(on_the_loop: bool) -> int:
    return connects_on_the_loop() if on_the_loop else connects()


@pytest.mark.parametrize("on_the_loop", [False, True])
def test_a_client_in_a_body_must_name_the_store_of_the_engine(
    engine: Client, on_the_loop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    monkeypatch.delenv("LOCKTENDER_URL", raising=False)

    with pytest.raises(RunFailed, match=r"names no store.*connect\(url\)"):
        engine.submit(connecting, on_the_loop).result(TIMEOUT)

    assert list((tmp_path / "other").iterdir()) == []
    core: Any = engine._core
    monkeypatch.setenv("LOCKTENDER_URL", core.settings.url)
    assert engine.submit(connecting, on_the_loop).result(TIMEOUT) == 2


# -- secrets -----------------------------------------------------------------------------------------


@flow
def log_in(kind: str, token: str, tokens: list[str]) -> list[Any]:
    use = steps.BODIES["use"][kind]
    return [use(token), use.map(tokens), use(secret("env:HG_TEST_SECRET"), {"inner": [token]})]


@every
def test_a_secret_is_known_to_the_body_and_to_nobody_else(make_engine: Engines, kind: str):
    engine = make_engine()
    given = secret("env:HG_TEST_SECRET")

    run = engine.submit(log_in, kind, given, [given, "plain"])

    size = len(VALUE)
    assert run.result(TIMEOUT) == [size, [size, 5], 2 * size]
    assert any("using ***" in line.message for line in run.logs())
    folder = make_engine.path.parent
    assert VALUE.encode() not in stored(folder)
    assert b"$locktender.secret" in stored(folder)
    engine.close()
    assert VALUE.encode() not in stored(folder)


@every
def test_a_secret_in_an_error_is_hidden_everywhere(make_engine: Engines, kind: str):
    engine = make_engine()
    run = engine.submit(steps.call, "slip", kind, [secret("env:HG_TEST_SECRET")])

    with pytest.raises(RunFailed, match=r"cannot log in with \*\*\*") as caught:
        run.result(TIMEOUT)

    assert VALUE not in f"{caught.value} {caught.value.traceback} {caught.value.__notes__}"
    assert VALUE not in str(run.events())
    assert VALUE.encode() not in stored(make_engine.path.parent)


def test_a_missing_secret_fails_once_and_names_the_variable(engine: Client):
    run = engine.submit(steps.call, "use", "thread", [secret("env:HG_TEST_NONE")])

    with pytest.raises(RunFailed, match="'HG_TEST_NONE' of a secret argument is not set"):
        run.result(TIMEOUT)

    [task] = run.tasks()
    assert task.attempt == 1


def test_a_result_that_holds_a_secret_is_not_stored(make_engine: Engines):
    engine = make_engine()
    run = engine.submit(steps.call, "leak", "async", [secret("env:HG_TEST_SECRET")])

    with pytest.raises(RunFailed, match="the value of a secret"):
        run.result(TIMEOUT)

    assert VALUE.encode() not in stored(make_engine.path.parent)


@step
def points() -> Any:
    return {"token": secret("env:HG_TEST_SECRET")}


@flow
def pointing() -> Any:
    return points()


@flow
def returning(token: str) -> Any:
    return [token]


def test_a_secret_that_a_body_returns_is_refused(engine: Client):
    with pytest.raises(
        RunFailed, match="step 'points' returned a secret, which is known to workers"
    ):
        engine.submit(pointing).result(TIMEOUT)


def test_a_secret_that_a_flow_returns_stays_a_reference(engine: Client):
    given = secret("env:HG_TEST_SECRET")
    assert engine.submit(returning, given).result(TIMEOUT) == [given]


# -- the loop ----------------------------------------------------------------------------------------


def test_a_step_that_holds_the_loop_is_named(engine: Client, caplog: pytest.LogCaptureFixture):
    engine.submit(steps.call, "hold_loop", "async", []).result(TIMEOUT)

    def named() -> list[str]:
        return [each.getMessage() for each in caplog.records if "holds the worker" in each.msg]

    [text] = eventually(named, what="the warning")
    assert "step hold_loop_async" in text
    assert "inside_steps.py" in text


# -- the command line and the docs -------------------------------------------------------------------


def ask(engine: Client, *arguments: str) -> cli_harness.CommandResult:
    core: Any = engine._core
    url = core.settings.url
    return cli_harness.locktender(*arguments, "--url", url, cwd=Path(url).parent, COLUMNS="200")


def locktender(engine: Client, *arguments: str) -> str:
    said = ask(engine, *arguments)
    assert said.code == 0, said.err
    return said.out


def test_the_command_shows_the_lines(engine: Client):
    run = engine.submit(steps.call, "talk", "thread", ["[hello]"])
    run.result(TIMEOUT)
    [task] = run.tasks()

    shown = locktender(engine, "runs", "logs", run.id).splitlines()
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} INFO    talk_thread attempt 1 says \[hello\]", shown[0]
    )
    assert shown[-1].endswith("talk_thread #2 a library says [hello]")
    found = json.loads(locktender(engine, "runs", "logs", run.id, "--task", str(task.id), "--json"))
    assert [line["level"] for line in found] == ["INFO", "WARNING", "ERROR", "INFO", "WARNING"]
    unknown = ask(engine, "runs", "logs", run.id, "--task", "1", "--json")
    assert (unknown.code, f"run {run.id} has no task 1" in unknown.err) == (2, True)


DOCS = (Path(__file__).parents[2] / "docs" / "steps.md").read_text()


@pytest.mark.parametrize("number", range(DOCS.count("```python\n")))
def test_the_examples_of_the_docs_run(number: int, tmp_path: Path):
    block = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)[number]
    (tmp_path / "example.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "API_TOKEN": VALUE},
    )
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"^ *# prints: (.*)$", block, re.MULTILINE)
    assert done.stdout.splitlines() == expected
    assert VALUE.encode() not in stored(tmp_path / ".locktender")


def test_the_users_own_handlers_still_hear_everything(engine: Client):
    heard: list[str] = []

    class Mine(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    handler = Mine()
    logging.getLogger("tests.inside").addHandler(handler)
    try:
        engine.submit(steps.call, "talk", "thread", ["twice"]).result(TIMEOUT)
    finally:
        logging.getLogger("tests.inside").removeHandler(handler)
    assert heard == ["a library says twice"] * 2
