"""Bodies that look at themselves, each as a step of every executor."""

from __future__ import annotations

import contextvars
import functools
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from locktender import Retry, current, embedded, flow, step

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


@flow
def another(number: int) -> int:
    return add_one(number)


@step
def add_one(number: int) -> int:
    return number + 1


@flow
def runs_another(number: int) -> int:
    return add_one(another.run(number))


@everywhere()
def run_another(folder: str, how: str) -> int:
    """Would open its store below `folder`."""
    os.environ["LOCKTENDER_URL"] = f"{folder}/second.db"
    if how == "in a thread of the body":
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(contextvars.copy_context().run, another.run, 1).result()
    return another.run(1)


@everywhere()
def open_another(folder: str) -> int:
    with embedded(f"{folder}/second.db") as second:
        return second.submit(another, 1).result("60s")


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


def unheard(name: str) -> logging.Logger:
    """A logger without any handler that would stumble over what bodies log here."""
    made = logging.getLogger(name)
    made.propagate = False
    made.handlers[:] = [logging.NullHandler()]
    made.setLevel(logging.INFO)
    return made


@everywhere()
def log_oddly() -> int:
    """Records that no encoder would take as they are."""
    unheard("half\udc80" + "x" * 1_000).warning("by an odd name")
    odd = unheard("tests.odd")
    odd.log(10**30, "at an odd level")
    for created in (float("nan"), 1e300):
        made = {"msg": "at an odd time", "created": created, "name": None, "levelno": 20}
        odd.handle(logging.makeLogRecord(made))
    return 1


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@everywhere()
def log_the_unprintable() -> int:
    odd = unheard("tests.odd")
    odd.info(Unprintable())
    odd.info("%d", "no number")
    return 1


class Echo:
    """Logs itself whenever it is asked for its text."""

    def __str__(self) -> str:
        unheard("tests.odd").info("asked for %s", self)
        return "echo"


@everywhere()
def log_an_echo() -> int:
    unheard("tests.odd").info("%s", Echo())
    return 1


@everywhere()
def log_by_signals(seconds: float) -> int:
    """A signal handler that logs and says how far it is, in the middle of a body that does both."""
    me = current(required=True)
    # Not to standard error: what Python writes there must not be interrupted by a write of its own.
    silent = logging.getLogger("by_signals")
    silent.addHandler(logging.NullHandler())
    silent.propagate = False

    def note(*_: object) -> None:
        silent.warning("a signal")
        me.progress(1)
        signal.setitimer(signal.ITIMER_REAL, 0.001)  # again, but never inside of itself

    signal.signal(signal.SIGALRM, note)
    signal.raise_signal(signal.SIGALRM)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        silent.warning("the body")
        me.progress(2)
    # Only so many lines are kept: one of each kind is the last, however fast the body is.
    signal.raise_signal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 0)
    silent.warning("the body")
    return 1


@everywhere()
def slip_by_names(token: str) -> None:
    logging.getLogger(f"client.{token}").warning("logged in")
    raise type(f"Refused_{token}", (Exception,), {})
