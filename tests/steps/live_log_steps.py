"""Bodies that log, wait for a file and log again, in each executor."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from locktender import flow, step

log = logging.getLogger("shop")


def _talk(folder: str, token: str) -> None:
    log.warning("first line, with %s", token)
    Path(folder, "logged").touch()


def _waits(folder: str) -> bool:
    return not Path(folder, "gate").exists()


def _end(folder: str) -> str:
    log.warning("last line")
    return folder


@step
async def on_loop(folder: str, token: str) -> str:
    _talk(folder, token)
    while _waits(folder):  # noqa: ASYNC110 — another process makes the file
        await asyncio.sleep(0.02)
    return _end(folder)


@step
def in_thread(folder: str, token: str) -> str:
    _talk(folder, token)
    while _waits(folder):
        time.sleep(0.02)
    return _end(folder)


@step(executor="process")
def in_child(folder: str, token: str) -> str:
    _talk(folder, token)
    while _waits(folder):
        time.sleep(0.02)
    return _end(folder)


@step
async def silent(n: int) -> int:
    return n


@flow
def by_loop(folder: str, token: str) -> str:
    return on_loop(folder, token)


@flow
def by_thread(folder: str, token: str) -> str:
    return in_thread(folder, token)


@flow
def by_child(folder: str, token: str) -> str:
    return in_child(folder, token)


@flow
def quiet(n: int) -> int:
    return silent(n)
