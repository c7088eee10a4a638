"""What a second process does in the tests of processes: `postgres_child.py <url> <verb> [argument]`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time

from locktender.base.changes import End
from locktender.base.ids import run_id
from locktender.store.postgres import PostgresStore
from locktender.store.protocol import Accept, Finish, Submit
from locktender.testing.conformance.world import DIGEST, GRAPH, join, new_run


def say(**words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def fresh() -> Submit:
    return Submit([new_run(run=run_id(time.time_ns() // 1000, os.urandom(11)))], {DIGEST: GRAPH})


async def race(store: PostgresStore, count: str) -> None:
    """Submits `count` runs at once; says how many were admitted."""
    say(ready=True)
    await asyncio.to_thread(sys.stdin.readline)
    results = await asyncio.gather(*(store.submit(fresh()) for _ in range(int(count))))
    say(created=sum(result[0].outcome == "created" for result in results))


async def work(store: PostgresStore, worker: str) -> None:
    """Accepts and ends whatever it is offered, in an order of its own, until it is asked to stop."""
    await join(store, worker)
    stopped = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
    say(ready=True)
    done, mark = 0, -1
    while not stopped.done():
        offers = [(order.task, order.token) for order in await store.orders(worker)]
        if not offers:
            mark = await store.wait(20_000, mark)
            continue
        random.shuffle(offers)
        started = await store.accept(Accept(worker, offers))
        ended = [End(each.task, each.token, "completed", b"1") for each in started]
        random.shuffle(ended)
        half = len(ended) // 2
        await asyncio.gather(
            store.finish(Finish(worker, ended[:half])), store.finish(Finish(worker, ended[half:]))
        )
        done += len(ended)
    say(done=done)


async def main(url: str, verb: str, argument: str) -> None:
    store = PostgresStore(url)
    await store.open()
    await {"race": race, "work": work}[verb](store, argument)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
