"""Runs generated programs, several at once, on an engine of any kind, and judges each with the oracle.

    python -m tests.support.generated --on sqlite --seeds 0:100
    python -m tests.support.generated --on cluster-postgres --seeds 17 --kills

`sqlite` and `postgres` are embedded; `cluster-…` is a server and two workers; with `--kills` each of them
is killed (SIGKILL) now and then, and another one started. A seed that fails prints its program.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.support.cluster import Cluster, ClusterNode
from tests.support.generated_flows import STEPS_FILE, steps
from tests.support.leases import KEPT, lapse
from tests.support.oracle import Key, Oracle, Seen, Try
from tests.support.program_waits import answered
from tests.support.programs import POOL_LIMITS, POOLS, Program, generate

from locktender import Client, InvalidInput, NotFound, Run, embedded
from locktender.testing import eventually
from locktender.testing.history import check_history
from locktender.testing.overlap import VARIABLE, Overlap, OverlapRecord

TIMEOUT = "120s"
KINDS = ("sqlite", "postgres", "cluster-sqlite", "cluster-postgres")
OPERATOR_SECONDS = 0.02
SETTINGS: dict[str, Any] = {"process_permits": 1, "max_active": 1000}
ENDED = ("succeeded", "failed", "cancelled", "timed_out")


@dataclass
class Result:
    """One program that did not do what it must."""

    program: Program
    problems: list[str]
    tasks: list[str] = field(default_factory=list[str])


# -- one program ---------------------------------------------------------------------------------------


def drive(client: Client, program: Program, kills: Callable[[], int]) -> Result | None:
    """Submits a program, cancels and retries it as it says, and judges each try."""
    oracle = Oracle(program)
    run = client.submit(steps.flow_of(program), delay=program.get("delay"))
    with answered(client, run, program):
        return _judge_tries(run, oracle, program, kills)


def _judge_tries(
    run: Run[Any], oracle: Oracle, program: Program, kills: Callable[[], int]
) -> Result | None:
    done = 0
    for number, each in enumerate(program["tries"]):
        if number:
            run.retry()
        before = kills()
        forced = _watch(run, program, each, done)
        state = str(run.wait(TIMEOUT))
        executions = steps.executions(run.id)
        seen = _seen(run, state, executions, done)
        seen.forced, seen.kills = forced, kills() - before
        if problems := oracle.judge(seen):
            texts = [f"try {number + 1}, {state}: {problem}" for problem in problems]
            return Result(program, texts, [f"{key}: {task}" for key, task in seen.tasks.items()])
        if state == "succeeded" or (seen.kills and oracle.cut):
            return None  # what is left of a run that was cut while workers died cannot be told from outside
        done = len(executions)
    return None


def _watch(run: Run[Any], program: Program, each: dict[str, Any], done: int) -> bool:
    """Cancels the run when its time has come; whether by force."""
    after = each["cancel_after"]
    holds = '"held"' in json.dumps(program)
    if after is None and not holds:
        return False

    def due() -> str:
        if str(run.status()) in ENDED:
            return "ended"
        now = steps.executions(run.id)[done:]
        if any(execution.outcome == "held" for execution in now):
            return "held"
        return "asked" if after is not None and len(now) >= after else ""

    why = eventually(due, TIMEOUT, "the end of the run, or its time to be cancelled")
    if why == "ended":
        return False
    forced = why == "asked" and each["force"]
    run.cancel(force=forced)
    return forced


def _seen(run: Run[Any], state: str, executions: Sequence[Any], done: int) -> Try:
    tasks: dict[Key, Seen] = {}
    for task in run.tasks():
        key = (task.name.rpartition(".")[2], task.index)
        mine = [number for number, each in enumerate(executions) if each.task == task.id]
        past = sum(number < done for number in mine)
        message = "" if task.error is None else task.error.message
        now = [executions[number] for number in mine[past:]]
        tasks[key] = Seen(str(task.state), message, past, now)
    return Try(state, run.result(TIMEOUT) if state == "succeeded" else None, tasks)


# -- many at once ----------------------------------------------------------------------------------------


@dataclass
class Place:
    """Where programs run."""

    client: Client
    overlap: Overlap
    url: str
    close: Callable[[], None]
    cluster: Cluster | None = None
    servers: list[ClusterNode] = field(default_factory=list[ClusterNode])
    workers: list[ClusterNode] = field(default_factory=list[ClusterNode])
    kills: int = 0
    """Workers killed so far."""
    killed: int = 0
    """All that were killed so far."""

    def start_server(self) -> None:
        assert self.cluster is not None
        self.servers.append(self.cluster.server(offer_ttl="10m", max_active=1000, **KEPT).ready())

    def start_worker(self) -> None:
        assert self.cluster is not None
        node = self.cluster.worker(STEPS_FILE, process_permits=1, **KEPT)
        self.workers.append(node.ready())

    def kill_one(self, draw: Random) -> None:
        """SIGKILL of the server or of a worker, after another one has started."""
        if draw.choice((True, False)):
            self.start_server()
            node = self.servers.pop(0)
        else:
            self.start_worker()
            node = self.workers.pop(0)
            self.kills += 1  # before: who counts later must not miss it
        node.kill()
        self.killed += 1
        lapse(self.url, node)


def run_seeds(
    place: Place, seeds: Sequence[int], *, at_once: int = 8, kills: int = 0
) -> list[Result]:
    """Runs these programs, `at_once` together, while an operator changes limits; those that did wrong."""
    stop = threading.Event()
    programs = [generate(seed) for seed in seeds]
    for pool in POOLS:
        place.client.pools.set(pool, limit=POOL_LIMITS[1])
    helpers = [threading.Thread(target=_operate, args=(place.client, stop, seeds[0]))]
    if kills:
        helpers.append(threading.Thread(target=_kill, args=(place, stop, seeds[0], kills)))
    for helper in helpers:
        helper.start()
    try:
        with ThreadPoolExecutor(at_once) as threads:
            results = list(threads.map(lambda each: _driven(place, each), programs))
    finally:
        stop.set()
        for helper in helpers:
            helper.join()
    return [result for result in results if result is not None]


def _driven(place: Place, program: Program) -> Result | None:
    try:
        return drive(place.client, program, lambda: place.kills)
    except Exception as error:  # noqa: BLE001 — which program it was is what matters
        return Result(program, [f"{type(error).__name__}: {error}"])


def _operate(client: Client, stop: threading.Event, seed: int) -> None:
    """Changes limits while programs run; at the end nothing is paused."""
    draw = Random(seed)
    while not stop.wait(OPERATOR_SECONDS):
        pool = draw.choice(POOLS)
        match draw.randrange(6):
            case 0:
                client.limits.set_max_concurrent_runs(draw.randint(2, 12))
            case 1:
                client.pools.pause(pool)
                client.pools.resume(pool)
            case 2:
                _pause_somebody(client, stop, draw)
            case _:
                client.pools.set(pool, limit=draw.randint(*POOL_LIMITS))


def _pause_somebody(client: Client, stop: threading.Event, draw: Random) -> None:
    """A run, or all runs of its flow, start nothing for a moment. It may end meanwhile."""
    active = client.runs.list(status=["queued", "running", "waiting"], limit=20)
    if not active:
        return
    run = draw.choice(active)
    with suppress(InvalidInput, NotFound):
        if draw.choice((True, False)):
            client.runs.pause(run.id)
            stop.wait(OPERATOR_SECONDS)
            client.runs.resume(run.id)
        else:
            client.flows.pause(run.flow)
            stop.wait(OPERATOR_SECONDS)
            client.flows.resume(run.flow)


def _kill(place: Place, stop: threading.Event, seed: int, times: int) -> None:
    """Kills somebody whenever some more bodies have run."""
    draw = Random(seed)
    for _ in range(times):
        wanted = _executed(place) + draw.randint(5, 40)
        while _executed(place) < wanted:
            if stop.wait(OPERATOR_SECONDS):
                return
        place.kill_one(draw)


def _executed(place: Place) -> int:
    folder = place.overlap.path.parent / "ran"
    if not folder.exists():
        return 0
    return sum(file.read_bytes().count(b"\n") for file in folder.iterdir())


class _Read(Overlap):
    """The records of bodies, read once."""

    def __init__(self, overlap: Overlap) -> None:
        super().__init__(overlap.path)
        self._lines = overlap.lines()

    def lines(self) -> list[OverlapRecord]:
        return self._lines


def check_peaks(overlap: Overlap) -> list[str]:
    """Bounds that the bodies' own records show to be exceeded."""
    by_name: dict[str, list[OverlapRecord]] = {}
    read = _Read(overlap)
    marks = [line for line in read.lines() if not line.name]
    names = read.names()
    for line in read.lines():
        if line.name:
            by_name.setdefault(line.name, []).append(line)
    found: list[str] = []
    for name in names:
        limit = POOL_LIMITS[1] if name in POOLS else int(name.split("/")[1])
        if marks:
            peak = read.peak(name)
        else:
            one = _Read(overlap)
            one._lines = by_name[name]
            peak = one.peak(name)
        if peak > limit:
            found.append(f"{name}: {peak} bodies at once, the limit is {limit}")
    return found


# -- places ----------------------------------------------------------------------------------------------


@contextmanager
def embedded_place(url: str, folder: Path) -> Generator[Place]:
    """An engine in this process."""
    overlap = Overlap(folder / "overlap.jsonl")
    with _recorded(overlap), embedded(url, work_dir=folder / "work", **SETTINGS) as client:
        yield Place(client, overlap, url, client.close)


@contextmanager
def cluster_place(url: str, folder: Path) -> Generator[Place]:
    """A server and two workers."""
    overlap = Overlap(folder / "overlap.jsonl")
    with _recorded(overlap):
        cluster = Cluster(url, folder, overlap, grace="5s")
        try:
            place = Place(cluster.client(), overlap, url, cluster.end, cluster)
            place.start_server()
            place.start_worker()
            place.start_worker()
            yield place
        finally:
            cluster.end()


@contextmanager
def _recorded(overlap: Overlap) -> Iterator[None]:
    past = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(overlap.path)
    try:
        yield
    finally:
        if past is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = past


def judge_place(place: Place) -> list[str]:
    """Ends a place and judges its whole history and every bound that bodies recorded."""
    place.close()
    found = check_peaks(place.overlap)
    try:
        check_history(place.url)
    except AssertionError as error:
        found.append(str(error))
    return found


def told(results: Sequence[Result], on: str) -> str:
    """What went wrong, with each program and how to run it again."""
    lines: list[str] = []
    for result in results:
        seed = result.program["seed"]
        lines += [f"seed {seed}:", *(f"  {problem}" for problem in result.problems)]
        lines += [f"  saw {task}" for task in result.tasks]
        lines += ["  program:", *_shown(result.program, "    ")]
        lines += [f"  again: python -m tests.support.generated --on {on} --seeds {seed}"]
    return "\n".join(lines)


def _shown(scope: dict[str, Any], indent: str) -> list[str]:
    """A program, one call per line, without what is as usual."""
    usual = (None, [], {}, 0, False, "success", "fail", "continue")
    facts = [
        f"{key}={json.dumps(value)}"
        for key, value in scope.items()
        if key not in ("calls", "name", "seed") and value not in usual
    ]
    lines = [f"{indent}{scope['name']}: {' '.join(facts)}"]
    return lines + [line for call in scope.get("calls", ()) for line in _shown(call, f"{indent}  ")]


# -- command ---------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=KINDS, default="sqlite")
    parser.add_argument("--seeds", default="0:100", help="first:last (not included), or one seed")
    parser.add_argument("--batch", type=int, default=50, help="seeds that share an engine")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--kills", type=int, default=0, help="processes killed per batch")
    given = parser.parse_args(argv)
    first, _, last = given.seeds.partition(":")
    seeds = range(int(first), int(last or int(first) + 1))
    wrong = 0
    with ExitStack() as opened:
        server = template = ""
        if "postgres" in given.on:
            from locktender.testing import postgres_server

            server = opened.enter_context(postgres_server.server())
            template = opened.enter_context(postgres_server.template(server))
        for start in range(0, len(seeds), given.batch):
            batch = seeds[start : start + given.batch]
            wrong += _batch(batch, given, server, template)
    _say(f"{len(seeds)} seeds on {given.on}: {wrong} wrong")
    return 1 if wrong else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _batch(seeds: Sequence[int], given: argparse.Namespace, server: str, template: str) -> int:
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        url = str(folder / "locktender.db")
        if server:
            from locktender.testing.postgres_server import copy_of

            url = opened.enter_context(copy_of(server, template))
        make = cluster_place if given.on.startswith("cluster") else embedded_place
        with make(url, folder) as place:
            results = run_seeds(place, seeds, at_once=given.at_once, kills=given.kills)
            found = judge_place(place)
        if results:
            _say(told(results, given.on))
        for each in found:
            _say(f"seeds {seeds[0]} to {seeds[-1]}: {each}")
        _say(f"seeds {seeds[0]}–{seeds[-1]}: {len(results)} wrong, {place.killed} killed")
        return len(results) + len(found)


if __name__ == "__main__":
    sys.exit(main())
