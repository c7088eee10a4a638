"""What the SQLite store's verbs cost, against a bare loop of the same rows.

The bare loop is what one could write at best without an engine: `executemany`
of the rows that the verb writes (and a SELECT of each task that a worker must
read to run it), in one transaction with the same fsync, on one connection in
the calling thread. It checks nothing: no fence, no key, no ceiling, no result
of a compare-and-set. Both run in turns in one process on the same
disk, so that the ratio means something on any machine.

    python -m bench.store
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from bench.report import Figure
from locktender.base.changes import End, TaskRow
from locktender.base.commits import Commit, RunEvents, TaskEnd
from locktender.base.events import Change, pack
from locktender.base.ids import run_id, task_id, token
from locktender.base.model import NewRun, WorkerRow
from locktender.store.protocol import Accept, Elect, Finish, Heartbeat, SetLimit, Submit
from locktender.store.sqlite import SqliteStore

BATCH = 200
PER_RUN = 10
ROUNDS = 60
WORKER = "worker-1"
ACTOR = "leader:bench"


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    rows_per_second: float
    bare_rows_per_second: float

    @property
    def ratio(self) -> float:
        return self.rows_per_second / self.bare_rows_per_second


def run(rounds: int = ROUNDS) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="locktender-bench-") as folder:
        return asyncio.run(_run(Path(folder), rounds))


async def _run(folder: Path, rounds: int) -> list[Result]:
    store = SqliteStore(folder / "ours.db")
    await store.open()
    other = SqliteStore(folder / "bare.db")
    await other.open()
    await other.close()
    bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = OFF"):
        bare.execute(f"PRAGMA {pragma}").fetchall()
    try:
        await store.set_limit([SetLimit("active", "", b'{"limit": -1}', "bench")])
        return [
            await _commit(store, bare, rounds),
            await _submit(store, bare, rounds),
            *await _work(store, bare, rounds),
        ]
    finally:
        bare.close()
        await store.close()


async def _timed(
    name: str,
    rows: int,
    rounds: int,
    ours: Callable[[int], Awaitable[object]],
    theirs: Callable[[int], None],
) -> Result:
    mine: list[float] = []
    plain: list[float] = []
    for n in range(rounds + 5):
        start = time.perf_counter()
        await ours(n)
        middle = time.perf_counter()
        theirs(n)
        end = time.perf_counter()
        if n >= 5:
            mine.append(middle - start)
            plain.append(end - middle)
    return Result(name, rows / statistics.median(mine), rows / statistics.median(plain))


# -- commit: 200 tasks start, the 200 of the round before end


def _running(first_run: int, term: int) -> list[TaskRow]:
    return [
        TaskRow(
            task_id(first_run + n // PER_RUN, n % PER_RUN),
            n % PER_RUN,
            -1,
            "running",
            attempt=1,
            token=token(term, first_run * 1000 + n),
            worker=WORKER,
            held=b'{"db":1}',
            input=b'{"args":[1,2],"kwargs":{}}',
            requested_at=1_794_713_146_876_055,
            scheduled_at=1_794_713_146_876_055,
            started_at=1_794_713_146_876_055,
        )
        for n in range(BATCH)
    ]


def _events(started: list[TaskRow], ended: list[TaskRow]) -> list[RunEvents]:
    runs: dict[int, list[Change]] = {}
    for task in ended:
        runs.setdefault(task.id >> 20, []).append(
            Change("task", task.id, "running", "completed", task.token)
        )
    for task in started:
        changes = runs.setdefault(task.id >> 20, [])
        changes.append(Change("task", task.id, "new", "requested", 0, {"node": task.node}))
        changes.append(
            Change("task", task.id, "requested", "scheduled", task.token, {"worker": WORKER})
        )
        changes.append(Change("task", task.id, "scheduled", "running", task.token))
    return [RunEvents(run, changes) for run, changes in runs.items()]


async def _commit(store: SqliteStore, bare: sqlite3.Connection, rounds: int) -> Result:
    led = await store.elect(Elect("bench", 3_600_000_000))
    batches = [_running(1 + n * BATCH // PER_RUN, led.term) for n in range(rounds + 6)]
    commits: list[Commit] = []
    for n in range(rounds + 5):
        ended = batches[n]
        commits.append(
            Commit(
                led.term,
                n + 2,
                ACTOR,
                tasks_new=batches[n + 1],
                tasks_ended=[TaskEnd(t.id, t.token, b"42", led.now) for t in ended],
                events=_events(batches[n + 1], ended),
            )
        )
    await store.commit(Commit(led.term, 1, ACTOR, tasks_new=batches[0], events=[RunEvents(0, [])]))
    _insert_tasks(bare, batches[0])

    def theirs(n: int) -> None:
        commit = commits[n]
        events = [
            (led.now, led.term, commit.cycle, ACTOR, run, pack(changes))
            for run, changes in commit.events
        ]
        bare.execute("BEGIN IMMEDIATE")
        _insert_tasks(bare, commit.tasks_new)
        bare.executemany(
            "UPDATE task SET state = 'completed', output = ?, ended_at = ?, held = NULL"
            " WHERE id = ? AND token = ?",
            [(end.output, end.ended_at, end.id, end.token) for end in commit.tasks_ended],
        )
        _insert_events(bare, events)
        bare.execute("COMMIT")

    return await _timed(
        f"commit {BATCH} started + {BATCH} ended",
        2 * BATCH,
        rounds,
        lambda n: store.commit(commits[n]),
        theirs,
    )


def _insert_tasks(bare: sqlite3.Connection, tasks: list[TaskRow]) -> None:
    bare.executemany(
        "INSERT INTO task (id, node, idx, state, attempt, tries, abandons, offers, token, worker,"
        " held, input, output, error, requested_at, scheduled_at, started_at, ended_at,"
        " not_before, eligible_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        tasks,
    )


def _insert_events(bare: sqlite3.Connection, events: list[tuple[object, ...]]) -> None:
    bare.executemany(
        "INSERT INTO event (at, term, cycle, actor, run, body) VALUES (?,?,?,?,?,?)", events
    )


# -- submit


def _new_runs() -> list[NewRun]:
    return [
        NewRun(
            id=run_id(time.time_ns() // 1000, os.urandom(11)),
            flow="bench.flow",
            graph="0" * 64,
            params=b'{"accessions":["SRR1","SRR2"]}',
            consts=b"[]",
            tags={"tenant": f"t{n % 10}"},
        )
        for n in range(BATCH)
    ]


async def _submit(store: SqliteStore, bare: sqlite3.Connection, rounds: int) -> Result:
    batches = [_new_runs() for _ in range(rounds + 5)]
    seq = 1_000_000

    def theirs(n: int) -> None:
        nonlocal seq
        now = time.time_ns() // 1000
        rows: list[tuple[object, ...]] = []
        queued: list[tuple[object, ...]] = []
        events: list[tuple[object, ...]] = []
        for run in batches[n]:
            seq += 1
            rows.append(
                (
                    seq,
                    run.id,
                    run.flow,
                    run.graph,
                    pack(run.tags).decode(),
                    now,
                    run.params,
                    run.consts,
                )
            )
            queued.append((1, 0, now, seq))
            data = {"flow": run.flow, "graph": run.graph, "tags": run.tags, "rank": (0, now)}
            events.append(
                (now, 0, 0, "client", seq, pack([Change("run", 0, "new", "queued", 0, data)]))
            )
        bare.execute("BEGIN IMMEDIATE")
        bare.executemany(
            "INSERT INTO run (seq, id, state, kind, flow, graph, tags, priority, generation, lane,"
            " rank1, rank2, queued_at, started_at, ended_at, params, consts)"
            " VALUES (?,?,'queued','flow',?,?,?,0,0,1,0,0,?,0,0,?,?)",
            rows,
        )
        bare.executemany("INSERT INTO queue (lane, rank1, rank2, run) VALUES (?,?,?,?)", queued)
        _insert_events(bare, events)
        bare.execute("UPDATE counter SET admitted = admitted + ? WHERE name = ''", (BATCH,))
        bare.execute("COMMIT")

    graphs = {"0" * 64: b"{}"}
    return await _timed(
        f"submit {BATCH}",
        BATCH,
        rounds,
        lambda n: store.submit(Submit(batches[n], graphs)),
        theirs,
    )


# -- accept and finish


async def _work(store: SqliteStore, bare: sqlite3.Connection, rounds: int) -> list[Result]:
    led = await store.elect(Elect("bench", 3_600_000_000))
    await store.heartbeat(
        Heartbeat(WorkerRow(WORKER, "host", 1, "0", {"async": -1}, -1, 50), 3_600_000_000)
    )
    each = BATCH // PER_RUN
    batches: list[list[TaskRow]] = []
    for n in range(rounds + 5):
        first = 500_001 + n * each
        batches.append(
            [
                task._replace(state="scheduled", attempt=0, started_at=0)
                for task in _running(first, led.term)
            ]
        )
    await _runs_for(store, bare, rounds + 5)
    for n, batch in enumerate(batches):
        await store.commit(Commit(led.term, n + 1, ACTOR, tasks_new=batch))
        bare.execute("BEGIN")
        _insert_tasks(bare, batch)
        bare.execute("COMMIT")

    def accept(n: int) -> None:
        batch = batches[n]
        bare.execute("BEGIN IMMEDIATE")
        bare.executemany(
            "UPDATE task SET state = 'running', attempt = attempt + 1, started_at = ?"
            " WHERE id = ? AND token = ? AND worker = ? AND state = 'scheduled'",
            [(led.now, task.id, task.token, WORKER) for task in batch],
        )
        for task in batch:
            bare.execute(
                "SELECT t.*, r.id, r.graph, n.input FROM task t JOIN run r ON r.seq = t.id >> 20"
                " LEFT JOIN node_input n ON n.run = r.seq AND n.node = t.node WHERE t.id = ?",
                (task.id,),
            ).fetchone()
        _bare_events(batch, "scheduled", "running", {"worker": WORKER})
        bare.execute("COMMIT")

    def finish(n: int) -> None:
        batch = batches[n]
        bare.execute("BEGIN IMMEDIATE")
        bare.executemany(
            "UPDATE task SET state = 'completed', output = ?, ended_at = ?, held = NULL"
            " WHERE id = ? AND token = ? AND state = 'running'",
            [(b"42", led.now, task.id, task.token) for task in batch],
        )
        _bare_events(batch, "running", "completed", None)
        bare.execute("COMMIT")

    def _bare_events(
        batch: list[TaskRow], before: str, after: str, data: dict[str, object] | None
    ) -> None:
        runs: dict[int, list[Change]] = {}
        for task in batch:
            runs.setdefault(task.id >> 20, []).append(
                Change("task", task.id, before, after, task.token, data)
            )
        _insert_events(
            bare,
            [(led.now, 0, 0, WORKER, run, pack(changes)) for run, changes in runs.items()],
        )

    async def ours_accept(n: int) -> None:
        started = await store.accept(Accept(WORKER, [(t.id, t.token) for t in batches[n]]))
        assert len(started) == BATCH

    async def ours_finish(n: int) -> None:
        stale = await store.finish(
            Finish(WORKER, [End(t.id, t.token, "completed", b"42") for t in batches[n]])
        )
        assert not stale

    return [
        await _timed(f"accept {BATCH}", BATCH, rounds, ours_accept, accept),
        await _timed(f"finish {BATCH}", BATCH, rounds, ours_finish, finish),
    ]


async def _runs_for(store: SqliteStore, bare: sqlite3.Connection, batches: int) -> None:
    """Rows of the runs that the tasks belong to, under numbers of our choice."""
    rows = [
        (500_001 + n, run.id, run.flow, run.graph, run.params, run.consts)
        for n, run in enumerate(
            run for _ in range(batches) for run in _new_runs()[: BATCH // PER_RUN]
        )
    ]
    text = (
        "INSERT INTO run (seq, id, state, kind, flow, graph, tags, priority, generation, lane,"
        " rank1, rank2, queued_at, started_at, ended_at, params, consts)"
        " VALUES (?,?,'running','flow',?,?,'{}',0,0,1,0,0,0,0,0,?,?)"
    )
    bare.executemany(text, rows)
    direct = sqlite3.connect(store.path)
    with direct:
        direct.executemany(text, rows)
    direct.close()


def figures() -> list[Figure]:
    return [
        Figure(
            f"{result.name}, share of a bare loop",
            result.ratio * 100,
            "%",
            ">= 50",
            result.ratio >= 0.5,
            f"{result.rows_per_second:,.0f} rows/s",
        )
        for result in run()
    ]


if __name__ == "__main__":
    for figure in figures():
        print(figure.line())
