"""Steps for pauses, retries from a step, bounded queues and cached results."""

from __future__ import annotations

import threading
from pathlib import Path

from locktender import flow, step
from locktender.testing import eventually, recording

GATE = threading.Event()
"""Bodies of `gated` wait for it."""


@step
def gated(x: int) -> int:
    assert GATE.wait(60)
    return x


@step
def plus_one(x: int) -> int:
    return x + 1


@flow
def two_steps(x: int) -> int:
    return plus_one(gated(x))


@flow
def beside(x: int) -> int:
    return plus_one(x)


@step
def until_file(path: str, x: int) -> int:
    with recording("file", label=str(x)):
        eventually(Path(path).exists)
        return x


@step
async def after_file(x: int) -> int:
    with recording("after", label=str(x)):
        return x + 1


@flow
def through_a_file(path: str, x: int) -> int:
    return after_file(until_file(path, x))


@step
def clean_up(marks: str, _x: int) -> None:
    Path(marks, "cleaned").touch()


@flow
def cleaning(marks: str, x: int) -> int:
    held = gated(x)
    done = plus_one(held)
    clean_up.with_options(after=[done], run_if="always")(marks, x)
    return done


@flow
def also_through_a_file(path: str, x: int) -> int:
    return plus_one(until_file(path, x))


@step
def marked(marks: str, name: str, x: int) -> int:
    """Leaves a mark per call; fails while the file `fail-NAME` is there."""
    with Path(marks, name).open("a") as file:
        file.write("x")
    if Path(marks, f"fail-{name}").exists():
        raise ValueError(name)
    return x


@flow
def diamond(marks: str, x: int) -> int:
    top = marked.with_options(name="top")(marks, "top", x)
    left = marked.with_options(name="left")(marks, "left", top)
    right = marked.with_options(name="right")(marks, "right", top)
    return total.with_options(name="bottom")(marks, left, right)


@step
def total(marks: str, a: int, b: int) -> int:
    with Path(marks, "bottom").open("a") as file:
        file.write("x")
    return a + b
