"""A back end for Django's tasks: `django.tasks` of Django 6, or the package `django-tasks` before it.

    TASKS = {
        "default": {
            "BACKEND": "locktender.integrations.django.LocktenderBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"url": "postgresql://app@db/shop", "database": "default"},
        }
    }

Each task is a run of one step, which imports the task by its path and calls it. Workers load this module:

    DJANGO_SETTINGS_MODULE=shop.settings locktender worker --app locktender.integrations.django

The queue is the tag `queue` of the run, so that a limit of this tag bounds it. The task's path is the tag `task`.
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, cast

import msgspec

from locktender.base.errors import InvalidInput
from locktender.base.model import Failure, RunRow
from locktender.base.names import did_you_mean
from locktender.base.states import RunState, TaskState
from locktender.client.client import Client
from locktender.client.outbox_rows import find_row
from locktender.client.submit_in import submit_in
from locktender.client.views import failure_of, moment
from locktender.flows.flows import flow
from locktender.flows.steps import step
from locktender.store.blob_values import open_values
from locktender.store.open import schema_of, settings_for
from locktender.worker.executors.current import current

# Django has no types of its own, and its tasks have two homes.
HOME = "django.tasks" if find_spec("django.tasks") is not None else "django_tasks"
_base: Any = importlib.import_module(f"{HOME}.base")
_signals: Any = importlib.import_module(f"{HOME}.signals")
_exceptions: Any = importlib.import_module(f"{HOME}.exceptions")
if TYPE_CHECKING:

    class _BaseTaskBackend:
        alias: str
        options: dict[str, Any]

        def __init__(self, alias: str, params: dict[str, Any]) -> None: ...
        def validate_task(self, task: Any) -> None: ...
        def get_result(self, result_id: str) -> Any: ...

else:
    _BaseTaskBackend = importlib.import_module(f"{HOME}.backends.base").BaseTaskBackend
_InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
_normalize: Any = importlib.import_module(
    "django.utils.json" if HOME == "django.tasks" else "django_tasks.utils"
).normalize_json
_checks: Any = importlib.import_module("django.core.checks")
_db: Any = importlib.import_module("django.db")
_timezone: Any = importlib.import_module("django.utils.timezone")
_import_string: Any = importlib.import_module("django.utils.module_loading").import_string
_sync_to_async: Any = importlib.import_module("asgiref.sync").sync_to_async
_Status: Any = _base.TaskResultStatus

OPTIONS = ("url", "database", "schema", "tags")
_READY = frozenset({RunState.SUBMITTED, RunState.QUEUED, RunState.WAITING})
_ENDED_BADLY = {
    RunState.CANCELLED: "locktender.RunCancelled",
    RunState.TIMED_OUT: "locktender.RunTimedOut",
    RunState.REJECTED: "locktender.AdmissionRejected",
}


class _Call(msgspec.Struct, frozen=True):
    """A task as it was enqueued: the parameters of its run."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    queue_name: str
    priority: int
    run_after: datetime | None
    enqueued_at: datetime

    def restored(self) -> Any:
        """The task itself, with what it was enqueued with."""
        found: Any = _import_string(self.task)
        if not isinstance(found, _base.Task):
            raise InvalidInput(f"{self.task} is not a task.", field="task", got=self.task)
        named: Any = found
        return named.using(
            priority=self.priority,
            queue_name=self.queue_name,
            run_after=self.run_after,
            backend=self.backend,
        )

    def result(self, run_id: str, status: Any = _Status.READY, **more: Any) -> Any:
        given: dict[str, Any] = {
            "started_at": None,
            "finished_at": None,
            "last_attempted_at": None,
            "errors": [],
            "worker_ids": [],
            **more,
        }
        return _base.TaskResult(
            task=self.restored(),
            id=run_id,
            status=status,
            enqueued_at=self.enqueued_at,
            args=self.args,
            kwargs=self.kwargs,
            backend=self.backend,
            **given,
        )


# -- in a worker


@step(name="django task")
def call_task(call: _Call) -> Any:
    with _execution(call) as (task, given):
        _db.close_old_connections()
        try:
            return _normalize(task.call(*given, **call.kwargs))
        finally:
            _db.close_old_connections()


@step(name="django async task")
async def call_async_task(call: _Call) -> Any:
    with _execution(call) as (task, given):
        try:
            return _normalize(await task.acall(*given, **call.kwargs))
        finally:
            await _sync_to_async(_db.close_old_connections)()


@flow(name="django task")
def django_task(call: _Call) -> Any:
    return call_task(call)


@flow(name="django async task")
def django_async_task(call: _Call) -> Any:
    return call_async_task(call)


@contextmanager
def _execution(call: _Call) -> Generator[tuple[Any, list[Any]]]:
    """The task and its positional arguments; its signals are sent when it starts and when it has ended."""
    importlib.import_module("django").setup()  # at once where it has been done
    job = current()
    run_id, attempt = ("", 1) if job is None else (job.run, job.attempt)
    now: datetime = _timezone.now()
    worker = f"{socket.gethostname()}-{os.getpid()}"
    result: Any = call.result(
        run_id,
        _Status.RUNNING,
        started_at=now,
        last_attempted_at=now,
        worker_ids=[worker] * attempt,
    )
    task: Any = result.task
    sender = cast("Any", type(task.get_backend()))
    _signals.task_started.send(sender=sender, task_result=result)
    given: list[Any] = list(result.args)
    if task.takes_context:
        given.insert(0, _base.TaskContext(task_result=result))
    try:
        yield task, given
    except BaseException:
        _end(result, _Status.FAILED)
        _signals.task_finished.send(sender=sender, task_result=result)
        raise
    _end(result, _Status.SUCCESSFUL)
    _signals.task_finished.send(sender=sender, task_result=result)


def _end(result: Any, status: Any) -> None:
    # Django's results are frozen; its own back ends change them so, too.
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", _timezone.now())


# -- in an application


class _TaskClient(Client):
    """A client that also reads what a run was submitted with."""

    def row(self, run_id: str) -> RunRow | None:
        return self._bridge.call(self._row(run_id))

    async def _row(self, run_id: str) -> RunRow | None:
        store = self._core.store
        found = await find_row(store, run_id)
        return None if found is None else await open_values(store, found)


_clients: dict[tuple[int, str | None], _TaskClient] = {}
_turn = threading.Lock()


def _client(url: str | None) -> _TaskClient:
    """One for all threads: Django makes a back end for each. A forked child opens its own."""
    key = os.getpid(), url
    with _turn:
        found = _clients.get(key)
        if found is None or found.closed:
            found = _clients[key] = _TaskClient(settings_for(url, {}), engine=False)
        return found


def close_clients() -> None:
    """Closes the clients of this process; the next call of a back end opens one again."""
    with _turn:
        for key in [each for each in _clients if each[0] == os.getpid()]:
            _clients.pop(key).close()


class LocktenderBackend(_BaseTaskBackend):
    """Enqueues Django's tasks as runs.

    OPTIONS:

    url       the store; default the setting `url`. None: this process has no right to read it, and tasks have no
              results here
    database  the alias of a Django database on the same PostgreSQL: a task is enqueued with its transaction, and
              its role needs no more than `locktender db grant-submit` gives; default none
    schema    with `database` and without `url`: the schema of the store; default "locktender"
    tags      added to each run; default none
    """

    supports_defer: bool = True
    supports_async_task: bool = True
    supports_get_result: bool = True
    supports_priority: bool = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        given: dict[str, Any] = self.options
        self._url: str | None = given.get("url")
        self._database: str | None = given.get("database")
        self._tags: Mapping[str, str] = given.get("tags", {})
        self.supports_get_result = "url" not in given or self._url is not None
        self._schema: str = given.get("schema", "locktender")

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Stores the task; with `database`, in the transaction that is open there."""
        self.validate_task(task)
        call = self._called(task, args, kwargs)
        asynchronous = iscoroutinefunction(task.func)
        wanted = django_async_task if asynchronous else django_task
        options: dict[str, Any] = {
            "tags": {**self._tags, "queue": task.queue_name, "task": call.task[-200:]},
            "priority": task.priority,
            "start_at": call.run_after,
        }
        if self._database is None:
            run_id = _client(self._url).submit(wanted, call, **options).id
        else:
            run_id = submit_in(self._connection(), wanted, call, schema=self._where(), **options)
        result = call.result(run_id)
        _signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """What became of a task."""
        if not self.supports_get_result:
            return super().get_result(result_id)
        client = _client(self._url)
        row = client.row(str(result_id))
        if row is None or row.flow not in (django_task.name, django_async_task.name):
            raise _exceptions.TaskResultDoesNotExist(result_id)
        call = msgspec.convert(msgspec.json.decode(row.params)["call"], _Call, strict=False)
        run = client.runs.get(row.id)
        state = RunState(row.state)
        more: dict[str, Any] = {
            "finished_at": moment(row.ended_at),
            "worker_ids": [
                each.data.get("worker", "")
                for each in run.events()
                if each.subject == "task" and each.after == TaskState.RUNNING
            ],
        }
        status, failure = _Status.READY, failure_of(row.error)
        if state not in _READY | {RunState.REJECTED}:
            tasks = run.tasks()
            started = tasks[0].started_at if tasks else None
            more |= {"started_at": moment(row.started_at), "last_attempted_at": started}
            if any(each.state == TaskState.RUNNING for each in tasks):
                status = _Status.RUNNING
            # The run's own has no traceback.
            failure = next((each.error for each in tasks if each.error is not None), failure)
        if state == RunState.SUCCEEDED:
            status = _Status.SUCCESSFUL
        elif state == RunState.FAILED or state in _ENDED_BADLY:
            status = _Status.FAILED
            more["errors"] = [_error(failure, state)]
        result = call.result(row.id, status, **more)
        if state == RunState.SUCCEEDED:
            object.__setattr__(result, "_return_value", run.result(0))
        return result

    def check(self, **_: Any) -> Iterable[Any]:
        """Options that there are not, and a database that cannot be used."""
        found: list[Any] = [
            _checks.Error(
                f"TASKS[{self.alias!r}]: locktender has no option {name!r}.",
                hint=did_you_mean(name, OPTIONS) or f"There are {', '.join(OPTIONS)}.",
                id="locktender.E001",
            )
            for name in self.options
            if name not in OPTIONS
        ]
        if self._database is not None:
            try:
                self._connection()
            except InvalidInput as error:
                found.append(_checks.Error(error.message, hint=error.hint, id="locktender.E002"))
        return found

    def _called(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Call:
        path: str = task.module_path
        try:
            same = _import_string(path).func is task.func
        except (ImportError, AttributeError):
            same = False
        if not same:
            raise _InvalidTask(f"{path} is not this task: a worker finds tasks by their path.")
        start_at: datetime | None = task.run_after
        if start_at is not None and not _timezone.is_aware(start_at):
            start_at = cast("datetime", _timezone.make_aware(start_at))
        return _Call(
            path,
            _normalize(list(args)),
            _normalize(dict(kwargs)),
            self.alias,
            task.queue_name,
            task.priority,
            start_at,
            _timezone.now(),
        )

    def _connection(self) -> Any:
        if self._database not in _db.connections:
            raise InvalidInput(
                f"TASKS[{self.alias!r}]: there is no database {self._database!r}.",
                field="database",
                got=self._database,
                hint="Name one of DATABASES.",
            )
        connection: Any = _db.connections[self._database]
        if connection.vendor != "postgresql":
            raise InvalidInput(
                f"TASKS[{self.alias!r}]: only PostgreSQL takes tasks in a transaction.",
                field="database",
                got=self._database,
                hint="Leave the option database out: a task is then enqueued at once.",
            )
        return connection

    def _where(self) -> str:
        """The schema of the store."""
        found = None if self._url is None else schema_of(self._url)
        return self._schema if found is None else found


def _error(failure: Failure | None, state: RunState) -> Any:
    path = _ENDED_BADLY.get(state, "locktender.RunFailed")
    text = "" if failure is None else failure.traceback or failure.text()
    if state == RunState.FAILED and failure is not None and failure.traceback:
        # The last line names the class with its module, unless it is a built-in.
        [*_, line] = re.findall(
            rf"^(?:[\w.]+\.)?{re.escape(failure.type)}\b", text, re.MULTILINE
        ) or [""]
        path = line if "." in line else f"builtins.{line}" if line else path
    return _base.TaskError(exception_class_path=path, traceback=text)
