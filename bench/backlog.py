"""A long queue: 1,000,000 queued runs of 10,000 tenants against 1,000 runs.

What a leader's cycle costs, on each store (`bench/backlog_leader.py`, a process for each queue), and how many runs
end in a second on SQLite, with a server and a worker and with an embedded engine. There the two queues take turns,
and stay as long as they are: what has ended is submitted again.

    python -m bench backlog
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final, Literal, NamedTuple

from bench import backlog_leader
from bench.backlog_leader import Shape
from bench.cluster import processes
from bench.peers.drive import pause_after
from bench.report import Figure, ratios
from bench.sleepers import STORES, url_of
from locktender import AsyncClient, Submission, connect_async, embedded_async, flow, step
from locktender.flows.trace import trace

ROUNDS = 5
WARM_UP_RUNS, MEASURED_RUNS = 2_000, 10_000
PATIENCE_SECONDS = 300.0
ENDED = "SELECT closed FROM counter WHERE name = ''"
QUEUED = "SELECT count(*) FROM queue"


class Queue(NamedTuple):
    runs: int
    tenants: int


Engine = Literal["server + worker", "embedded"]
ENGINES: Final[tuple[Engine, ...]] = ("server + worker", "embedded")
FEW, MANY = Queue(1_000, 1_000), Queue(1_000_000, 10_000)


@step
async def nothing(n: int) -> int:
    return n


@flow
def one(n: int) -> int:
    return nothing(n)


def run() -> list[Figure]:
    return compared(FEW, MANY)


def compared(few: Queue, many: Queue) -> list[Figure]:
    found = [figure for store in STORES for figure in _cycle(store, few, many)]
    return [*found, *_throughput(few, many)]


# -- the leader's cycle ----------------------------------------------------------------------------


def _cycle(store: str, few: Queue, many: Queue) -> list[Figure]:
    short, long = _leader(store, few), _leader(store, many)
    ratio = long["ms"] / short["ms"]
    note = f"{short['ms']:.2f} ms -> {long['ms']:.2f} ms"
    name = f"{store}: cycle with {many.runs:,} queued runs / with {few.runs:,}"
    return [
        Figure.at_most(name, ratio, "×", 1.1, 1.3, note),
        Figure(
            f"{store}: … peak memory of the leader", long["mb"], "MB", "≤ 512", long["mb"] <= 512
        ),
        Figure(f"{store}: … why of a queued run", long["why"], "ms", "≤ 20", long["why"] <= 20),
    ]


def _leader(store: str, queue: Queue) -> dict[str, float]:
    with url_of(store) as url:
        command = [sys.executable, "-m", backlog_leader.__name__, url, *map(str, queue)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"the leader failed with {queue.runs:,} queued runs: {done.stderr[-500:]}"
        )
    return json.loads(done.stdout)


# -- throughput ------------------------------------------------------------------------------------


def _throughput(few: Queue, many: Queue) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        places = [(queue, Path(folder) / f"{queue.runs}.db") for queue in (many, few)]
        for queue, path in places:
            asyncio.run(_fill(path, queue))
        return [_shares(engine, places, few, many) for engine in ENGINES]


def _shares(
    engine: Engine, places: Sequence[tuple[Queue, Path]], few: Queue, many: Queue
) -> Figure:
    pairs: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        # The other one begins each time.
        order = places if number % 2 == 0 else places[::-1]
        rates = {queue: asyncio.run(rate(path, queue, engine)) for queue, path in order}
        pairs.append((rates[many] * 100, rates[few]))
    share = ratios(pairs)
    name = f"sqlite, {engine}: runs/s with {many.runs:,} queued runs / with {few.runs:,}"
    last_many, last_few = pairs[-1]
    note = f"the last {last_few:,.0f} /s -> {last_many / 100:,.0f} /s"
    return Figure.at_least(name, share.median, "%", 95, 90, note, share.note)


async def _fill(path: Path, queue: Queue) -> None:
    traced = trace(one, (0,))
    shape = Shape(one.name, traced.digest, traced.body, traced.params, traced.consts)
    async with backlog_leader.filled(str(path), *queue, shape):
        pass


@asynccontextmanager
async def _engine(path: Path, engine: Engine) -> AsyncGenerator[AsyncClient]:
    if engine == "embedded":
        async with embedded_async(path) as client:
            yield client
        return
    with processes(str(path)) as start:
        start("server", "--port", "0")
        start("worker", "--app", one.__module__)
        async with connect_async(path) as client:
            yield client


async def rate(path: Path, queue: Queue, engine: Engine) -> float:
    """Runs/s that end, while as many are submitted."""
    with closing(sqlite3.connect(path, timeout=60)) as db:
        before = db.execute(ENDED).fetchone()[0]
        # Those that ended last in the round before were not replaced.
        refilled = before - (queue.runs - db.execute(QUEUED).fetchone()[0])
        async with _engine(path, engine) as client:
            began = 0.0
            first = 0
            give_up = time.monotonic() + PATIENCE_SECONDS
            while True:
                asked = time.monotonic()
                ended = db.execute(ENDED).fetchone()[0]
                now = time.monotonic()
                if not first and ended - before >= WARM_UP_RUNS:
                    first, began = ended, now
                if first and ended - first >= MEASURED_RUNS:
                    return (ended - first) / (now - began)
                if now > give_up:
                    raise TimeoutError(f"{ended - before} runs ended in {PATIENCE_SECONDS:.0f} s")
                if ended > refilled:
                    again = [
                        Submission((0,), tags={"tenant": f"t{n % queue.tenants}"})
                        for n in range(refilled, ended)
                    ]
                    await client.submit_many(one, again)
                    refilled = ended
                await asyncio.sleep(pause_after(now - asked))


if __name__ == "__main__":
    for figure in run():
        print(figure.line())
