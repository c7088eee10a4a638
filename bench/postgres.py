"""What the PostgreSQL store's verbs cost, against a bare asyncpg loop that claims and completes.

The statements of the bare loop are those of `bench/bare.py`. Both run in turns, batch by batch, in one process on
the same server with fsync, so that the ratio means something on any machine. "ours of bare" is of the verbs alone;
the share of the bare loop that a whole fleet reaches is in *cluster*.

    python -m bench.postgres
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import asyncpg

from bench import bare
from bench.peers.workload import BATCH
from bench.report import Figure
from locktender.base.changes import End, Order, TaskRow
from locktender.base.commits import Commit, RunEnd, RunEvents, RunStart
from locktender.base.events import Change
from locktender.base.ids import run_id, task_id, token
from locktender.base.model import NewRun, WorkerRow
from locktender.store.postgres import PostgresStore
from locktender.store.protocol import (
    BEGINNING,
    Accept,
    Elect,
    Finish,
    Gather,
    Heartbeat,
    SetLimit,
    Submit,
)
from locktender.testing.postgres_server import connected, copy_of, server, template

PER_RUN = 10
ROUNDS = 40
WARM_UP = 8
WORKER = "worker-1"
ACTOR = "leader:bench"
FOREVER = 3_600_000_000
BARE_ROWS = 20_000
"""More than the rounds claim."""


def run(rounds: int = ROUNDS) -> list[Figure]:
    with server(durable=True) as url, template(url) as name, copy_of(url, name) as own:
        return asyncio.run(_run(own, rounds))


async def _run(url: str, rounds: int) -> list[Figure]:
    store = PostgresStore(url)
    await store.open()
    try:
        async with connected(url) as db:
            await db.execute(bare.TABLE)
            await bare.fill(db, BARE_ROWS)
            await store.set_limit([SetLimit("active", "", b'{"limit": -1}', "bench")])
            taken = await _Round(store, db).all(rounds)
    finally:
        await store.close()
    rate = {name: BATCH / statistics.median(each) for name, each in taken.items()}
    chain = 1 / sum(1 / rate[name] for name in ("offer", "accept", "finish"))
    loop = 1 / (1 / rate["bare claim"] + 1 / rate["bare complete"])
    figures = [Figure(f"{name}, {BATCH} rows", value, "/s") for name, value in rate.items()]
    figures.append(Figure("offer + accept + finish", chain, "tasks/s"))
    figures.append(Figure("bare claim + complete", loop, "tasks/s"))
    share = chain / loop
    figures.append(Figure("ours of bare", share, "×", target="≥ 0.25", met=share >= 0.25))
    return figures


class _Round:
    """A batch through every verb, then the same number through the bare loop."""

    def __init__(self, store: PostgresStore, db: asyncpg.Connection[Any]) -> None:
        self._store = store
        self._db = db
        self._taken: dict[str, list[float]] = {}
        self._cursor = BEGINNING
        self._tokens = 0
        self._cycle = 0

    async def all(self, rounds: int) -> dict[str, list[float]]:
        self._term = (await self._store.elect(Elect("bench", FOREVER))).term
        worker = WorkerRow(WORKER, "host", 1, "0", {"async": -1}, -1, 50)
        await self._store.heartbeat(Heartbeat(worker, FOREVER))
        for n in range(rounds + WARM_UP):
            if n == WARM_UP:
                self._taken.clear()
            await self._one()
        return self._taken

    async def _timed(self, name: str, work: Any) -> Any:
        start = time.perf_counter()
        result = await work
        self._taken.setdefault(name, []).append(time.perf_counter() - start)
        return result

    def _commit(self, **parts: Any) -> Commit:
        self._cycle += 1
        return Commit(self._term, self._cycle, ACTOR, **parts)

    async def _one(self) -> None:
        store, timed = self._store, self._timed
        runs = [_new(self._cycle * BATCH + n) for n in range(BATCH)]
        submit = Submit(runs, {"0" * 64: b"{}"})
        seqs = [each.seq for each in await timed("submit", store.submit(submit))]
        seqs = seqs[: BATCH // PER_RUN]
        await store.commit(self._commit(runs_started=[RunStart(run, 1) for run in seqs]))
        tasks, pairs = self._offers(seqs)
        await timed("offer", store.commit(tasks))
        await store.orders(WORKER)
        started = await timed("accept", store.accept(Accept(WORKER, pairs)))
        assert len(started) == BATCH
        ended = [End(task, given, "completed", b"42") for task, given in pairs]
        assert await timed("finish", store.finish(Finish(WORKER, ended))) == []
        gathered = await timed("gather", store.gather(Gather(self._cursor, ACTOR)))
        self._cursor = gathered.cursor
        ends = [RunEnd(run, "succeeded", b"1", None, 1) for run in seqs]
        events = [RunEvents(run, [Change("run", 0, "running", "succeeded")]) for run in seqs]
        await store.commit(self._commit(runs_ended=ends, events=events))
        rows = await timed("bare claim", self._db.fetch(bare.CLAIM, BATCH))
        ids = sorted(row[0] for row in rows)
        assert len(ids) == BATCH
        await timed("bare complete", self._db.execute(bare.COMPLETE, ids, [b"42"] * BATCH))

    def _offers(self, runs: list[int]) -> tuple[Commit, list[tuple[int, int]]]:
        tasks: list[TaskRow] = []
        events: list[RunEvents] = []
        for run in runs:
            changes: list[Change] = []
            for ordinal in range(PER_RUN):
                self._tokens += 1
                given = token(self._term, self._tokens)
                task = TaskRow(
                    task_id(run, ordinal), ordinal, -1, "scheduled", offers=1, token=given,
                    worker=WORKER, held=b'{"db":1}', input=b'{"args":[1,2],"kwargs":{}}',
                    requested_at=1, scheduled_at=1,
                )  # fmt: skip
                tasks.append(task)
                data = {"worker": WORKER, "pools": {"db": 1}}
                changes += [
                    Change("task", task.id, "new", "requested", 0, {"node": ordinal}),
                    Change("task", task.id, "requested", "scheduled", given, data),
                ]
            events.append(RunEvents(run, changes))
        orders = [Order(WORKER, task.id, task.token, "offer") for task in tasks]
        commit = self._commit(tasks_new=tasks, orders=orders, events=events)
        return commit, [(task.id, task.token) for task in tasks]


def _new(n: int) -> NewRun:
    return NewRun(
        id=run_id(n * 1000, n.to_bytes(11, "big")),
        flow="bench",
        graph="0" * 64,
        params=b"{}",
        consts=b"[]",
        tags={"tenant": f"t{n % 7}"},
    )


if __name__ == "__main__":
    for figure in run():
        print(figure.line())
