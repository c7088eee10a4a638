"""A client that `tests/support/attack.py` kills, stops or lets fork: python attack_client.py URL WHAT CLOCK

    slots        holds a slot of the pool db, recorded, until it is killed or loses it
    fork         the same, and forks a child that lives on for a while
    lock         a foreign program that holds SQLite's write lock
    transaction  a foreign program inside of a transaction on our tables (PostgreSQL)
    elsewhere    a foreign program inside of a transaction in another database (PostgreSQL)

CLOCK is a file that says by how many seconds the clock of this machine is set (SQLite).
Prints one line when it is there.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import sys
import time
from pathlib import Path

import asyncpg
from tests.support import clock_set

from locktender import connect
from locktender.testing import recording
from locktender.testing.postgres_server import database

CHILD_SECONDS = 20.0
FOREVER = 600.0


def ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def slots(url: str, *, fork: bool) -> None:
    with (
        connect(url) as client,
        client.slots("db", timeout="60s", lease="4s") as held,
        recording("db"),
    ):
        if fork:
            process = multiprocessing.get_context("fork").Process
            process(target=time.sleep, args=[CHILD_SECONDS], daemon=False).start()
        ready()
        held.lost.wait(FOREVER)


def lock(url: str) -> None:
    db = sqlite3.connect(url, timeout=60, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    ready()
    time.sleep(FOREVER)


async def transaction(url: str, *statements: str) -> None:
    conn = await asyncpg.connect(url)
    await conn.execute("SET application_name = 'attack'")
    await conn.execute("BEGIN")
    for statement in statements:
        await conn.execute(statement)
    ready()
    await asyncio.sleep(FOREVER)


def main(url: str, what: str, clock: str) -> None:
    if "://" not in url:
        clock_set.follow(Path(clock))
    match what:
        case "lock":
            lock(url)
        case "transaction":
            statement = "SELECT 1 FROM locktender.run ORDER BY seq DESC LIMIT 1 FOR UPDATE"
            asyncio.run(transaction(url, statement))
        case "elsewhere":
            other = database(url, "elsewhere")
            asyncio.run(transaction(other, "CREATE TABLE public.theirs (n integer)"))
        case _:
            slots(url, fork=what == "fork")


if __name__ == "__main__":
    main(*sys.argv[1:])
