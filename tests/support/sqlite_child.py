"""What a second process does in the tests of processes: `sqlite_child.py <file> <verb> [argument]`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time

from locktender.base.clock import SECOND
from locktender.base.ids import run_id
from locktender.base.model import WorkerRow
from locktender.store.protocol import Elect, Heartbeat, SetLimit, Submit
from locktender.store.sqlite import SqliteStore
from locktender.store.sqlite import store as stores
from locktender.testing.conformance.world import DIGEST, GRAPH, new_run


def say(**words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def fresh() -> Submit:
    run = new_run(run=run_id(time.time_ns() // 1000, os.urandom(11)))
    return Submit([run], {DIGEST: GRAPH})


async def race(store: SqliteStore, count: str) -> None:
    """Submits `count` runs at once; says how many were admitted."""
    say(ready=True)
    sys.stdin.readline()
    results = await asyncio.gather(*(store.submit(fresh()) for _ in range(int(count))))
    say(created=sum(result[0].outcome == "created" for result in results))


async def hammer(store: SqliteStore, batch: str) -> None:
    """Submits batches until it is killed, saying each one that was acknowledged."""
    say(ready=True)
    while True:
        runs = [fresh().runs[0] for _ in range(int(batch))]
        await store.submit(Submit(runs, {DIGEST: GRAPH}))
        say(ids=[run.id for run in runs])


async def operate(store: SqliteStore, count: str) -> None:
    """Sets a limit `count` times, as an operator's command would; says when all are set."""
    for n in range(int(count)):
        await store.set_limit([SetLimit("pool", "db", b'{"limit":%d}' % (n + 1), "ops")])
    say(set=int(count))


async def echo(store: SqliteStore, count: str) -> None:
    """Answers each foreign commit with one of its own; it does not poll."""
    stores.POLL_SECONDS = 3600.0
    mark = await store.wait(0)
    say(ready=True)
    for _ in range(int(count)):
        mark = await store.wait(3600 * SECOND, mark)
        await store.submit(fresh())
    say(done=True)


async def live(store: SqliteStore, owner: str) -> None:
    """Leads and works with long leases, until it is killed."""
    led = await store.elect(Elect(owner, 3_600 * SECOND))
    worker = WorkerRow(owner, "host", os.getpid(), "0", {"async": 1}, 1, 1)
    await store.heartbeat(Heartbeat(worker, 3_600 * SECOND))
    say(term=led.term)
    await asyncio.Event().wait()


async def with_child(store: SqliteStore, owner: str) -> None:
    """Works with a child process that inherits the lock that says the worker is alive."""
    worker = WorkerRow(owner, "host", os.getpid(), "0", {"async": 1}, 1, 1)
    await store.heartbeat(Heartbeat(worker, 3_600 * SECOND))
    fd = store.live_fd(owner)
    assert fd is not None
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", "import signal; signal.pause()"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[fd],
    )
    say(child=child.pid)
    await asyncio.Event().wait()


async def main(path: str, verb: str, argument: str) -> None:
    store = SqliteStore(path)
    await store.open()
    await globals()[verb](store, argument)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
