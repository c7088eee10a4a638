"""Flows for the client's tests; also run by themselves as the other process of a test."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from locktender import connect, embedded, flow, step

GATE = threading.Event()
"""Bodies of `held` wait for it."""


@dataclass
class Stats:
    words: int
    path: str


@step
def double(x: int) -> int:
    return x * 2


@step
def total(xs: list[int]) -> int:
    return sum(xs)


@step
def measure(path: str) -> Stats:
    return Stats(len(path), path)


@step
def fail(message: str) -> int:
    raise ValueError(message)


@step
def until_open(x: int) -> int:
    assert GATE.wait(60)
    return x


@flow
def doubled_times(x: int, times: int) -> int:
    """As many steps as it is told."""
    for _ in range(times):
        x = double(x)
    return x if times else total([x])


@step(executor="process", retries=3)
def contradicts_in_a_process() -> int: ...  # type: ignore[empty-body]


@flow
def contradicting_in_a_process() -> int:
    return contradicts_in_a_process()


@step(pools={"db": 1})
def in_pool(x: int) -> int:
    return x


@step(pools={"db": 2})
async def heavy(x: int) -> int:
    return x


@step
def big(size: int) -> str:
    return "x" * size


@step
def size_of(text: str) -> int:
    return len(text)


@step
def attempt(marks: str, fails: int) -> int:
    """Leaves a mark per call, and fails the first `fails` times."""
    calls = len(list(Path(marks).iterdir()))
    Path(marks, f"{calls}").touch()
    if calls < fails:
        raise RuntimeError(f"call {calls}")
    return calls


@step
def sleep(marks: str, seconds: float) -> int:
    Path(marks, str(os.getpid())).touch()
    time.sleep(seconds)
    return os.getpid()


@flow
def doubled(x: int) -> int:
    return double(x)


@flow
def summed(xs: list[int], offset: int = 0) -> int:
    return total(double.map(xs, window=3))


@flow
def measured(path: str):
    return measure(path)


@flow
def all_measured(paths: list[str]):
    return measure.map(paths)


@flow
def failing(message: str) -> int:
    return double(fail(message))


@flow(tags={"team": "search", "tenant": "none"}, priority=3)
def waits(x: int) -> int:
    return until_open(x)


@flow
def pooled(x: int) -> int:
    return in_pool(x)


@flow
def needs_two(x: int) -> int:
    return heavy(x)


@flow
def large(size: int) -> str:
    return big(size)


@flow
def larges(sizes: list[int]) -> list[str]:
    return big.map(sizes)


@flow
def measured_text(text: str) -> int:
    return size_of(text)


@flow
def second_time(marks: str) -> int:
    return attempt(marks, 1)


@flow
def sleeps(marks: str, seconds: float) -> int:
    return sleep(marks, seconds)


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(role: str, url: str, *rest: str) -> None:
    # As at a terminal, however the tests were started: a shell's background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if role == "engine":  # until its input is closed
        with embedded(url, grace="1s"):
            say("ready")
            sys.stdin.read()
    elif role == "submit":
        with connect(url) as engine:
            say(engine.submit(doubled, int(rest[0])).result(timeout="60s"))
    elif role == "interrupted":
        with embedded(url, grace=rest[1]) as engine:
            engine.submit(sleeps, rest[0], 600.0).result()
    elif role == "forgetful":
        engine = embedded(url)
        run = engine.submit(sleeps, rest[0], 600.0)
        while not list(Path(rest[0]).iterdir()):
            time.sleep(0.01)
        say(run.id)
    elif role == "hold":
        hold_many(url, *rest)


def wait_for(ready: Callable[[], object]) -> None:
    end = time.monotonic() + 100
    while not ready() and time.monotonic() < end:
        time.sleep(0.002)


def hold_many(url: str, marks: str, pool: str, times: str, full: str) -> None:
    """Takes a slot again and again, from four threads; every hold leaves its begin and end.

    The first holds wait for each other until `full` are there, so that the limit is reached.
    """

    def work(number: int) -> None:
        for turn in range(int(times)):
            name = f"{os.getpid()}-{number}-{turn}"
            with engine.slots(pool):
                begun = time.monotonic_ns()
                Path(marks, f"{name}.begun").touch()
                wait_for(lambda: len(list(Path(marks).glob("*.begun"))) >= int(full))
                time.sleep(0.001)
                ended = time.monotonic_ns()
            Path(marks, name).write_text(f"{begun} {ended}")

    with connect(url) as engine:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])


@step
async def long_sleep() -> None:
    await asyncio.sleep(600)


@step
def tidy_up() -> None:
    return None


@flow
def sleeping() -> None:
    long_sleep()


@flow
def cleaned_up() -> None:
    slept = long_sleep()
    tidy_up.with_options(after=[slept], run_if="always")()


@flow
def tidied() -> None:
    tidy_up()
