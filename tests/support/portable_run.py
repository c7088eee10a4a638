"""Runs a step of each kind without the names that only Linux has: python portable_run.py FILE"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys

from locktender import embedded, flow, step


@step
async def on_loop(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


@step(executor="thread")
def in_thread(number: int) -> int:
    return number + 1


@step(executor="process")
def in_process(number: int) -> int:
    missing = not hasattr(os, "pidfd_open") and not hasattr(socket, "SOCK_NONBLOCK")
    return number + 1 if missing else -1


@flow
def through(number: int) -> int:
    return in_process(in_thread(on_loop(number)))


if __name__ == "__main__":
    assert not hasattr(select, "epoll")
    with embedded(sys.argv[1]) as engine:
        engine.pools.set("db", limit=1)
        with engine.slots("db"):
            sys.stdout.write(f"{engine.submit(through, 1).result('90s')}\n")
