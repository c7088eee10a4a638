"""The back end of Django's tasks: all that its interface has, on both stores."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.django_site import configured, tasks_of, use_database
from tests.support.roles import as_role, made_role

from locktender import AdmissionRejected, Client, RunState, connect, embedded
from locktender.integrations import django as backend
from locktender.store.postgres import PostgresPlace
from locktender.testing import Overlap, check_history, eventually
from locktender.testing.postgres_server import run

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
configured()
tasks: Any = importlib.import_module("tests.steps.django_task_steps")
home: Any = importlib.import_module(backend.HOME)
base: Any = importlib.import_module(f"{backend.HOME}.base")
exceptions: Any = importlib.import_module(f"{backend.HOME}.exceptions")
signals: Any = importlib.import_module(f"{backend.HOME}.signals")
InvalidTask: Any = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
Status = base.TaskResultStatus


@contextmanager
def using(**options: Any) -> Iterator[None]:
    from django.test import override_settings

    with override_settings(TASKS=tasks_of(**options)):
        yield
    backend.close_clients()


@pytest.fixture
def engine(store_url: str, tmp_path: Path) -> Iterator[Client]:
    with using(url=store_url):
        with embedded(store_url, work_dir=str(tmp_path / "work")) as made:
            yield made
        check_history(store_url)


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[str]:
    """A store that nobody works on."""
    store_url = str(tmp_path / "locktender.db")
    with using(url=store_url):
        yield store_url


def finished(result: Any) -> Any:
    def done() -> bool:
        result.refresh()
        return bool(result.is_finished)

    eventually(done, 60)
    return result


def test_a_task_is_run_and_its_result_read(engine: Client):
    for task in (tasks.nothing, tasks.nothing_async):
        result = task.enqueue(1, two=3)
        assert (result.status, result.is_finished, result.attempts) == (Status.READY, False, 0)
        with pytest.raises(ValueError, match="not finished"):
            _ = result.return_value
        finished(result)
        assert result.status == Status.SUCCESSFUL
        assert result.return_value is None
        assert result.enqueued_at <= result.started_at + timedelta(seconds=1)
        assert result.started_at <= result.last_attempted_at <= result.finished_at
        assert (result.task, result.args, result.kwargs) == (task, [1], {"two": 3})
        assert (result.attempts, result.errors, result.backend) == (1, [], "default")
    assert finished(tasks.answer.enqueue()).return_value == 42
    assert finished(tasks.on_a_thread.enqueue()).return_value is True
    large = "x" * 300_000
    assert finished(tasks.echo.enqueue(large)).return_value == large
    assert finished(tasks.echo.enqueue({"a": [1, None]})).return_value == {"a": [1, None]}


async def test_async_calls(engine: Client):
    result = await tasks.answer.aenqueue()
    async with asyncio.timeout(60):
        while not result.is_finished:
            await result.arefresh()
    assert result.return_value == 42
    same = await tasks.answer.aget_result(result.id)
    assert same.return_value == 42
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        await tasks.answer.aget_result("123")
    with pytest.raises(exceptions.TaskResultMismatch):
        await tasks.nothing.aget_result(result.id)


def test_failures_name_the_exception(engine: Client):
    for task, exception, said in (
        (tasks.fails, ValueError, "ValueError: it failed"),
        (tasks.fails_with_own_error, tasks.OwnError, "it failed: 1: 2"),
        (tasks.returns_what_is_no_json, TypeError, "Unsupported type"),
        (tasks.exits, SystemExit, "it exits"),
    ):
        result = finished(task.enqueue())
        assert result.status == Status.FAILED
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value
        [error] = result.errors
        assert error.exception_class is exception, error
        assert said in error.traceback
        assert result.finished_at is not None


def test_context_signals_and_what_a_worker_sees(engine: Client):
    seen: list[tuple[str, str, str]] = []

    def note(name: str) -> Any:
        def received(sender: Any, task_result: Any, **_: Any) -> None:
            seen.append((name, task_result.id, str(task_result.status)))

        return received

    several = [note("enqueued"), note("started"), note("finished")]
    three = (signals.task_enqueued, signals.task_started, signals.task_finished)
    for signal, each in zip(three, several, strict=True):
        signal.connect(each)
    good = finished(tasks.own_id.enqueue(1))
    assert good.return_value == good.id
    other = finished(tasks.own_id_async.enqueue())
    assert other.return_value == other.id
    bad = finished(tasks.fails.enqueue())
    assert [each for each in seen if each[1] == good.id] == [
        ("enqueued", good.id, "READY"),
        ("started", good.id, "RUNNING"),
        ("finished", good.id, "SUCCESSFUL"),
    ]
    assert ("finished", bad.id, "FAILED") in seen


def test_a_queue_is_a_tag_that_can_be_bounded(engine: Client, tmp_path: Path, overlap: Overlap):
    engine.limits.set_tag("queue", "mail", limit=1)
    latch = tmp_path / "latch"
    several = [tasks.waits.enqueue(str(latch)) for _ in range(3)]
    eventually(lambda: overlap.count("mail") == 1)
    running = [each for each in several if home_result(each).status == Status.RUNNING]
    assert len(running) == 1
    assert finished(tasks.answer.enqueue()).return_value == 42
    latch.touch()
    assert {finished(each).status for each in several} == {Status.SUCCESSFUL}
    assert overlap.peak("mail") == 1
    info = engine.runs.get(several[0].id).info()
    assert info.tags == {"queue": "mail", "task": "tests.steps.django_task_steps.waits"}
    assert info.priority == 3


def home_result(result: Any) -> Any:
    return home.default_task_backend.get_result(result.id)


def test_a_task_waits_until_run_after(idle: str):
    later = datetime.now(UTC) + timedelta(hours=1)
    result = tasks.answer.using(run_after=later, priority=-5, queue_name="mail").enqueue()
    assert result.task.run_after == later
    with connect(idle) as client:
        run = client.runs.get(result.id)
        assert run.status() == RunState.WAITING
        assert run.info().priority == -5
    same = tasks.answer.get_result(result.id)
    assert same == result
    assert same.status == Status.READY
    assert (same.task.priority, same.task.queue_name) == (-5, "mail")


def test_what_is_no_task_is_refused(idle: str):
    for wrong, said in (
        ({"queue_name": "post"}, "Queue 'post' is not valid"),
        ({"priority": 101}, "whole number between -100 and 100"),
        ({"run_after": datetime(2030, 1, 1)}, "aware datetime"),  # noqa: DTZ001
    ):
        with pytest.raises(InvalidTask, match=said):
            tasks.answer.using(**wrong)
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.nothing.enqueue(datetime.now(UTC))
    with pytest.raises(InvalidTask, match="is not this task"):
        tasks.hidden.enqueue()
    with pytest.raises(InvalidTask, match="module level"):
        home.task()(lambda: None)
    with connect(idle) as client:
        assert client.runs.list() == []


def test_results_of_others_are_none_of_its(idle: str):
    with connect(idle) as client:
        for missing in ("123", "0" * 26, client.submit(tasks_flow(), 1).id):
            with pytest.raises(exceptions.TaskResultDoesNotExist):
                tasks.answer.get_result(missing)


def tasks_flow() -> Any:
    from tests.support.db_stores import build

    return build


def test_a_cancelled_task_has_failed(idle: str, tmp_path: Path):
    result = tasks.answer.enqueue()
    with embedded(idle, work_dir=str(tmp_path / "work")) as engine:
        engine.limits.pause()
        other = tasks.answer.enqueue()
        engine.runs.get(other.id).cancel()
        finished(other)
        engine.limits.resume()
        finished(result)
    assert other.status == Status.FAILED
    assert other.errors[0].exception_class_path == "locktender.RunCancelled"
    check_history(idle)


def test_beyond_the_ceiling_it_is_refused(idle: str):
    with connect(idle) as client:
        client.limits.set_max_active(1)
    tasks.answer.enqueue()
    with pytest.raises(AdmissionRejected):
        tasks.answer.enqueue()


def test_options_are_checked(idle: str):
    with using(urls="x"):
        [error] = home.default_task_backend.check()
        assert "no option 'urls'" in error.msg
        assert "url" in error.hint
    with using(database="nowhere"):
        [error] = home.default_task_backend.check()
        assert "no database 'nowhere'" in error.msg
    with using(url=idle):
        assert list(home.default_task_backend.check()) == []


def test_i4_with_a_database_it_is_a_part_of_the_transaction(postgres_url: str, tmp_path: Path):
    """Under a role that may submit and nothing else."""
    from django.db import connections, transaction

    making = made_role(postgres_url)
    with asyncio.Runner() as loop:
        role = loop.run(making.__aenter__())
        run(PostgresPlace(postgres_url).grant("submit", role, revokes=False))
        use_database(as_role(postgres_url, role))
        try:
            with using(url=None, database="default"):
                assert list(home.default_task_backend.check()) == []
                with transaction.atomic():
                    made = tasks.answer.enqueue()
                plain = tasks.answer.enqueue()
                with transaction.atomic():
                    gone = tasks.answer.enqueue()
                    transaction.set_rollback(True)
                with pytest.raises(NotImplementedError):
                    home.default_task_backend.get_result(made.id)
                assert not home.default_task_backend.supports_get_result
        finally:
            connections["default"].close()
            loop.run(making.__aexit__(None, None, None))
    with using(url=postgres_url), embedded(postgres_url, work_dir=str(tmp_path)):
        assert finished(home_result(made)).return_value == 42
        assert finished(home_result(plain)).return_value == 42
        with pytest.raises(exceptions.TaskResultDoesNotExist):
            home_result(gone)
    check_history(postgres_url)
