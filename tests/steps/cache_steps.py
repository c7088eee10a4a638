"""Steps whose results are kept, for processes that are killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from locktender import flow, step
from locktender.testing import recording


@step(cache="1h", pool="db")
def fetch(n: int) -> int:
    with recording("fetch"):
        return n * 10


@step(cache="1h", cache_key=lambda marks, n: n % 10, cache_scope="everywhere", executor="process")
def held_up(marks: str, n: int) -> int:
    """Runs until it may end; of an earlier worker it never does."""
    (Path(marks) / f"began-{os.getpid()}").touch()
    with recording("held_up"):
        while not (Path(marks) / "go").exists():
            time.sleep(0.01)
    return n


@flow
def fetches(ns: list[int]) -> list[int]:
    return fetch.map(ns)


@flow
def holds(marks: str, n: int) -> int:
    return held_up(marks, n)
