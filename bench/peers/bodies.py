"""The bodies, the same for every contender, and the file in which they say when. Standard library only.

A line is written by one `write` to a file opened for appending, so lines of several processes do not mix.
Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache
from itertools import accumulate
from pathlib import Path

VARIABLE = "BENCH_STAMPS"
WIDTH = 32
"""Bytes of a line, so that the size of the file says how many there are."""


@cache
def _file() -> int:
    return os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def say(sign: str) -> None:
    os.write(_file(), f"{sign}{time.monotonic():.7f}".ljust(WIDTH - 1).encode() + b"\n")


def stamp() -> None:
    say("*")


async def sleep(seconds: float) -> None:
    say("+")
    await asyncio.sleep(seconds)
    say("-")


def sleep_in_thread(seconds: float) -> None:
    say("+")
    time.sleep(seconds)
    say("-")


class Stamps:
    """What the bodies said, for the one who measures."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def __len__(self) -> int:
        return self._path.stat().st_size // WIDTH

    def said(self, start: int) -> list[tuple[str, float]]:
        """(sign, time) of every line from `start` on."""
        data = self._path.read_bytes()[start * WIDTH :]
        lines = [data[at : at + WIDTH].decode() for at in range(0, len(data), WIDTH)]
        return [(line[0], float(line[1:])) for line in lines]


def peak(said: list[tuple[str, float]]) -> int:
    """How many bodies ran at once, at most."""
    ordered = sorted(said, key=lambda each: each[1])
    return max(accumulate(1 if sign == "+" else -1 for sign, _ in ordered), default=0)
