"""Bodies that look at themselves, each as a step of every executor."""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headgate import Retry, current, flow, step

log = logging.getLogger("tests.inside")
BODIES: dict[str, dict[str, Any]] = {}


def everywhere(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def define(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        async def on_loop(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        name = fn.__name__
        BODIES[name] = {
            "async": step(name=f"{name}_async", **options)(on_loop),
            "thread": step(name=f"{name}_thread", **options)(fn),
            "process": step(name=f"{name}_process", executor="process", **options)(fn),
        }
        return fn

    return define


@flow
def call(name: str, kind: str, args: list[Any]) -> Any:
    return BODIES[name][kind](*args)


@everywhere(timeout="1h")
def ask() -> dict[str, Any]:
    me = current(required=True)
    (me.workdir / "mine").write_text("x")
    assert me.deadline is not None
    return {
        "run": me.run,
        "flow": me.flow,
        "step": me.step,
        "task": me.task,
        "attempt": me.attempt,
        "token": me.token,
        "workdir": str(me.workdir),
        "left": me.seconds_left,
        "deadline": me.deadline.timestamp(),
        "stop": me.stop_requested,
        "again": current(required=True).token,
    }


@everywhere(retries=1, retry_delay="1ms")
def talk(text: str) -> int:
    me = current(required=True)
    me.log.info("attempt %d says %s", me.attempt, text)
    me.log.debug("not kept")
    log.warning("a library says %s", text)
    if me.attempt == 1:
        try:
            raise OSError("the cause")
        except OSError:
            me.log.exception("it went wrong")
        raise Retry
    return me.attempt


@everywhere()
def chatter(lines: int, size: int) -> None:
    me = current(required=True)
    for number in range(lines):
        me.log.info("%d %s", number, "x" * size)


@everywhere()
def silent() -> None:
    return None


@everywhere()
def work_until(path: str) -> str:
    """In a thread or a child; on the loop it would hold it."""
    me = current(required=True)
    for number in range(10_000):
        me.progress(number + 1, message="at work")
        if Path(path).exists():
            break
        time.sleep(0.005)
    me.progress(3, 4, "nearly there")
    while not Path(f"{path}.end").exists():
        time.sleep(0.005)
    return "done"


@everywhere(timeout="1500ms")
def hang_after(text: str) -> None:
    current(required=True).log.info("last words: %s", text)
    time.sleep(3600)


@everywhere(retries=3, retry_delay="1ms")
def use(token: str, config: dict[str, Any] | None = None) -> int:
    """All the ways a body may let a secret slip."""
    me = current(required=True)
    me.progress(1, 2, f"with {token}")
    me.log.info("using %s", token)
    log.warning("as json %s, as repr %r", json.dumps({"token": token}), token)
    return len(token) + len((config or {}).get("inner", [""])[0])


@everywhere(retries=3, retry_delay="1ms")
def slip(token: str) -> None:
    raise ValueError(f"cannot log in with {token}")


@everywhere()
def leak(token: str) -> dict[str, str]:
    return {"url": f"https://me:{token}@example"}


@everywhere()
def count_down(token: int) -> int:
    return token


@everywhere()
def fail(text: str) -> None:
    raise ValueError(text)


@everywhere()
def hold_loop() -> None:
    time.sleep(0.5)
