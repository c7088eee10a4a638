"""An attack on the whole: a server or two, workers and clients as real processes, and every fault at random.

    python -m tests.support.attack --on sqlite --minutes 12 --seed 3
    python -m tests.support.attack --on postgres --minutes 12 [--folder DIR]

A load of small runs goes on meanwhile. When the time is over everything may recover: then each run must have
ended right within `END_SECONDS` (or be held, and say so), no limit may have been exceeded by the bodies' own
records, the history must be clean, and every process must end when it is asked to. Faults are counted, and
written with their times to `faults.log`. The disk is a tmpfs, if this user may mount one; else it is never full.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support import clock_set
from tests.support.attack_faults import SETTINGS, Nemesis, Record, Work, shape, steps
from tests.support.cluster import Cluster
from tests.support.database import Database
from tests.support.fault_injector import Injector

from locktender import LocktenderError, Run
from locktender.base.clock import SECOND
from locktender.testing.history import check_history
from locktender.testing.overlap import VARIABLE, Overlap, OverlapRecord
from locktender.testing.postgres_server import execute
from locktender.testing.postgres_server import run as run_async

END_SECONDS = 180.0
DISK_BYTES = {"sqlite": "1g", "postgres": "2g"}


# -- verdict ---------------------------------------------------------------------------------------------


def judge(nemesis: Nemesis, work: Work, record: Record, overlap: Overlap, url: str) -> None:
    """Everything ends, and nothing was exceeded."""
    began = time.monotonic()
    for kind, number, run in work.runs:
        left = END_SECONDS - (time.monotonic() - began)
        try:
            state = str(work.ask(lambda run=run, left=left: run.wait(max(2.0, left)), 30))
        except LocktenderError as error:
            record.find(f"{kind} {run.id} did not end: {error}; {_why(run)}")
            continue
        if kind == "failing":
            if state not in ("failed", "timed_out"):
                record.find(f"{kind} {run.id} is {state}")
        elif state != "succeeded":
            errors = [(each.name, str(each.state), each.error) for each in run.tasks()]
            record.find(f"{kind} {run.id} is {state}: {errors}; {_why(run)}")
        elif run.result("10s") != steps.expected(kind, number):
            record.find(f"{kind} {run.id} came to {run.result('10s')}")
    record.note(f"all runs looked at {time.monotonic() - began:.1f} s after the last fault")
    _judge_victims(nemesis, record, url, began)
    for node in nemesis.nodes:
        try:
            code = node.close()
        except subprocess.TimeoutExpired:
            record.find(f"node {node.pid} does not end after SIGTERM: {node.log[-600:]}")
            node.kill()
            continue
        if code != 0:
            record.find(f"node {node.pid} ended with {code}: {node.log[-600:]}")
    _judge_peaks(record, overlap)
    try:
        check_history(url, slack_us=2 * SECOND)
    except AssertionError as error:
        record.find(str(error))
    # The leader's own audit has reported a graph that could not be read, and its report stands. The graph is
    # restored by now: read from the start, the history is clean.
    spoiled = any(fault.table == "graph" for _, _, fault, _ in nemesis.victims)
    audit = subprocess.run(
        [sys.executable, "-m", "locktender", "audit", *["--full"] * spoiled, "--url", url],
        capture_output=True,
        text=True,
        check=False,
    )
    if audit.returncode:
        record.find(
            f"audit ends with {audit.returncode}: {audit.stdout[-1500:]}{audit.stderr[-500:]}"
        )


def _judge_victims(nemesis: Nemesis, record: Record, url: str, began: float) -> None:
    injector = Injector(url)
    for run, seq, fault, old in nemesis.victims:
        while run.status() in ("queued", "running", "cancelling"):
            if time.monotonic() - began > END_SECONDS:
                break
            time.sleep(0.1)
        state = str(run.status())
        record.done[f"unreadable → {state}"] += 1
        if state == "held":
            if "held: " not in run.why().text():
                record.find(f"held {run.id} ({fault}) says {run.why().text()}")
            run.cancel()
            try:
                run.wait("60s")
            except LocktenderError as error:
                record.find(f"held {run.id} ({fault}) cannot be cancelled: {error}; {_why(run)}")
        elif state in ("queued", "running", "cancelling"):
            record.find(f"unreadable {run.id} ({fault}) is {state}: {_why(run)}")
        if fault.table == "graph":
            injector.write("graph", "body", seq, old)


class _Read(Overlap):
    """The records of one name, and the marks of all."""

    def __init__(self, lines: list[OverlapRecord]) -> None:
        super().__init__("")
        self._lines = lines

    def lines(self) -> list[OverlapRecord]:
        return self._lines


def _judge_peaks(record: Record, overlap: Overlap) -> None:
    limits = dict(steps.POOLS)
    lines = overlap.lines()
    marks = ("kill", "pause", "resume")
    names = {line.name for line in lines if line.kind == "begin"}
    for name in sorted(names):
        limit = limits.get(name)
        if name.startswith("window/"):
            limit = steps.WINDOW
        elif name.startswith("tenant/"):
            limit = steps.TAG_LIMIT
        if limit is None:
            continue
        read = _Read([line for line in lines if line.name == name or line.kind in marks])
        peak = max(read.levels(name))  # 0: all began in a process that had just been woken
        if name in limits or name.startswith("tenant/"):
            record.notes.append(f"peak of {name}: {peak} of {limit}, {read.count(name)} bodies")
        if peak > limit:
            record.find(f"{name}: {peak} at once, the limit is {limit}")


def _why(run: Run[Any]) -> str:
    try:
        return run.why().text()
    except Exception as error:  # noqa: BLE001
        return f"why raised {type(error).__name__}: {error}"


def _logged(folder: Path) -> Counter[str]:
    """Warnings, errors and exceptions in the logs of all nodes, by their form."""
    found: Counter[str] = Counter()
    for log in folder.glob("*.log"):
        if log.name == "faults.log":
            continue
        inside = False
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("Traceback"):
                inside = True
            elif inside and line and not line.startswith((" ", "|", "+")):
                inside = False
                found[f"TRACEBACK {shape(line)}"] += 1
            elif re.search(r"\b(warning|error|critical)\b", line[:60], re.IGNORECASE):
                found[shape(re.sub(r"^\S+\s", "", line))] += 1
    return found


# -- command ---------------------------------------------------------------------------------------------


@contextmanager
def mounted(folder: Path, size: str) -> Generator[Path | None]:
    """A small disk of its own; None if this user may not mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def attack(on: str, seconds: float, seed: int, folder: Path) -> Record:
    folder.mkdir(parents=True, exist_ok=True)
    overlap = Overlap(folder / "overlap.jsonl")
    os.environ[VARIABLE] = str(overlap.path)
    clock = folder / "clock"
    clock.write_text("0")
    record = Record(folder)
    with ExitStack() as opened:
        disk = opened.enter_context(mounted(folder / "disk", DISK_BYTES[on]))
        database: Database | None = None
        url = str(folder / "disk" / "locktender.db")
        if on == "postgres":
            database = Database(folder / "disk" / "data")
            opened.callback(database.close)
            url = database.url
            run_async(execute(url, "CREATE DATABASE elsewhere"))
        else:
            clock_set.follow(clock)
        cluster = Cluster(url, folder, overlap)
        opened.callback(cluster.end)
        first = cluster.server(**SETTINGS).ready()
        client = cluster.client()
        for pool, limit in steps.POOLS.items():
            client.pools.set(pool, limit=limit)
        client.pools.set("rated", rate="10/s", burst=3)
        client.limits.set_tag("tenant", limit=steps.TAG_LIMIT, per_value=True)
        first.close()
        work = Work(client, record, seed)
        nemesis = Nemesis(cluster, work, record, overlap, disk, database, clock, seed)
        opened.callback(nemesis.close)
        work.start()
        try:
            nemesis.go_on(seconds)
        finally:
            work.stop()
        record.note("the last fault is over")
        judge(nemesis, work, record, overlap, url)
        record.notes.append(f"{len(work.runs)} runs")
        record.notes += [f"client was told {n} ×: {text}" for text, n in work.refused.items()]
    record.notes += [f"log {n} ×: {text}" for text, n in _logged(folder).most_common(40)]
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where logs and records are left")
    given = parser.parse_args()
    # So that the processes and the disk are not left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = given.folder or Path(tempfile.mkdtemp(prefix="locktender-attack-"))
    record = attack(given.on, given.minutes * 60, given.seed, folder)
    out = [f"{given.on}, seed {given.seed}, logs and records in {folder}"]
    out += [f"  {n:5} {text}" for text, n in sorted(record.done.items())]
    out += [f"  {n:5} nodes ended by themselves with {code}" for code, n in record.exits.items()]
    out += [f"  {text}" for text in record.notes]
    out += [f"FOUND {text}" for text in record.found]
    sys.stdout.write("\n".join([*out, f"{len(record.found)} found"]) + "\n")
    return 1 if record.found else 0


if __name__ == "__main__":
    sys.exit(main())
