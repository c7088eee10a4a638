"""Django tasks of tests. The site has to be configured before this is imported."""

from __future__ import annotations

import importlib
import threading
import time
from pathlib import Path
from typing import Any

from locktender.integrations.django import HOME
from locktender.testing import recording

task: Any = importlib.import_module(HOME).task


@task()
def nothing(*args: Any, **kwargs: Any) -> None:
    return None


@task
async def nothing_async(*args: Any, **kwargs: Any) -> None:
    return None


@task()
def answer() -> int:
    return 42


@task()
def echo(value: Any) -> Any:
    return value


@task(takes_context=True)
def own_id(context: Any, attempt: int) -> str:
    assert context.attempt == attempt
    return str(context.task_result.id)


@task(takes_context=True)
async def own_id_async(context: Any) -> str:
    return str(context.task_result.id)


@task()
def fails() -> None:
    raise ValueError("it failed")


class OwnError(Exception):
    pass


@task()
def fails_with_own_error() -> None:
    raise OwnError("it failed: 1: 2")


@task()
def exits() -> None:
    raise SystemExit("it exits")


@task()
def returns_what_is_no_json() -> Any:
    return Path()


@task()
def on_a_thread() -> bool:
    return threading.current_thread() is not threading.main_thread()


@task(priority=3, queue_name="mail")
def waits(path: str) -> str:
    with recording("mail"):
        while not Path(path).exists():
            time.sleep(0.01)
    return path


def plain() -> None:
    return None


hidden = task()(plain)
"""Not where its path says."""
