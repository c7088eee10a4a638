"""The load, and the faults at random, of `tests/support/attack.py`."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster, ClusterNode
from tests.support.database import Database
from tests.support.failover import END_BACKENDS, query
from tests.support.fault_injector import Fault, Injector

from locktender import Client, LocktenderError, Run
from locktender.testing.overlap import Overlap
from locktender.testing.postgres_server import execute
from locktender.testing.postgres_server import run as run_async
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

STEPS_FILE = Path(__file__).parents[1] / "steps" / "attack_steps.py"
CLOCK_PROGRAM = str(Path(__file__).with_name("clock_set.py"))
CLIENT_PROGRAM = "tests.support.attack_client"
steps: Any = load(source(STEPS_FILE))

SETTINGS: dict[str, str] = {
    "worker_lease": "6s",
    "heartbeat": "1s",
    "leader_lease": "4s",
    "leader_renew": "800ms",
    "stall_grace": "8s",
    "process_permits": "2",
    "grace": "5s",
}
SHORT_STOP = (0.2, 3.0)
LONG_STOP = (8.0, 18.0)
"""Longer than a lease; the longest ones longer than `stall_grace` after it."""
MAX_OPEN = 12
STALL_SECONDS = 30.0
"""So long without the end of a run is reported, with the faults of that time."""
MARGIN_BYTES = 1 << 24
FILL_BYTES = 4_096
HELD_FAULTS = (
    Fault("graph", "body", "broken"),
    Fault("run", "consts", "broken"),
    Fault("run", "params", "broken"),
    Fault("task", "input", "broken"),
)
SET_CLOCK = """CREATE OR REPLACE FUNCTION locktender.locktender_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {seconds} * 1000000::bigint
$$"""
EXPECTED_EXITS = {-9, -15, 75}
"""Killed; asked to end before it was ready; or ended hard because a thread outlived the lease."""
NO_STORE = '"code":"store'
"""What a process says that was started while there was no store."""


def shape(text: str) -> str:
    """A message without its numbers."""
    return re.sub(r"[0-9a-f]{6,}|\d+(\.\d+)?", "N", text)[:160]


class Record:
    """What was done and what was found."""

    def __init__(self, folder: Path) -> None:
        self.done: Counter[str] = Counter()
        self.exits: Counter[int] = Counter()
        self.found: list[str] = []
        self.notes: list[str] = []
        self._began = time.monotonic()
        self._file = (folder / "faults.log").open("w")

    def note(self, text: str) -> None:
        self._file.write(f"{time.strftime('%H:%M:%S')} {self.age():7.1f} {text}\n")
        self._file.flush()

    def fault(self, text: str, detail: object = "") -> None:
        self.done[text] += 1
        self.note(f"{text} {detail}")

    def find(self, text: str) -> None:
        self.found.append(text)
        self.note(f"FOUND {text}")

    def age(self) -> float:
        return time.monotonic() - self._began


# -- load ------------------------------------------------------------------------------------------------


class Work:
    """Runs, submitted by a thread, a few at a time."""

    def __init__(self, client: Client, record: Record, seed: int) -> None:
        self.runs: list[tuple[str, int, Run[Any]]] = []
        self.open: list[Run[Any]] = []
        self.ended_at = time.monotonic()
        self.refused: Counter[str] = Counter()
        self.client, self._record = client, record
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._submit, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)
        if self._thread.is_alive():
            self._record.find("the client that submits does not return")

    def ask(self, question: Callable[[], Any], seconds: float = 120.0) -> Any:
        """Asked again while the store is away."""
        end = time.monotonic() + seconds
        while True:
            try:
                return question()
            except (LocktenderError, OSError) as error:
                self.refused[f"{type(error).__name__}: {shape(str(error))}"] += 1
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def _submit(self) -> None:
        number = 0
        while not self._stop.wait(0.05):
            try:
                self._look()
                if len(self.open) < MAX_OPEN:
                    number += 1
                    self._submit_one(number)
            except Exception as error:  # noqa: BLE001 — reported, and the load goes on
                self._record.find(f"the client raised {type(error).__name__}: {error}")

    def _look(self) -> None:
        for each in list(self.open):
            if self.ask(each.status) in ("succeeded", "failed", "cancelled", "timed_out", "held"):
                self.open.remove(each)
                self.ended_at = time.monotonic()

    def _submit_one(self, number: int) -> None:
        seconds = self._chance.choice((0.01, 0.05, 0.3, 1.5))
        kinds = ("chain", "window", "tenant", "rate", "blob", "failing")
        kind = self._chance.choices(kinds, (4, 3, 3, 1, 1, 1))[0]
        name = self._chance.choice(steps.TENANTS)
        how: dict[str, Any] = {"key": f"attack-{number}", "on_duplicate": "attach"}
        match kind:
            case "tenant":
                how["tags"] = {"tenant": name}
                args = (number, seconds, name)
            case "chain" | "window":
                args = (number, seconds)
            case "failing":
                args = ()
            case _:
                args = (number,)
        made = getattr(steps, kind)
        run = self.ask(lambda: self.client.submit(made, *args, **how))
        self.runs.append((kind, number, run))
        self.open.append(run)


# -- faults ----------------------------------------------------------------------------------------------


class Nemesis:
    def __init__(
        self,
        cluster: Cluster,
        work: Work,
        record: Record,
        overlap: Overlap,
        disk: Path | None,
        database: Database | None,
        clock: Path,
        seed: int,
    ) -> None:
        self._cluster, self._work, self._record = cluster, work, record
        self._overlap, self._disk, self._database, self._clock = overlap, disk, database, clock
        self._chance = random.Random(seed)
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._starts = [self._server, self._server, self._worker, self._worker, self._leading]
        self.nodes: list[ClusterNode] = [start() for start in self._starts]
        self._stopped: set[int] = set()
        self._offset = 0
        self._busy: set[str] = set()
        self._clients: list[subprocess.Popen[bytes]] = []
        self.victims: list[tuple[Run[Any], int, Fault, Any]] = []
        common = [
            (self._kill, 6),
            (self._stop_short, 4),
            (self._stop_long, 3),
            (self._terminate, 1),
            (self._set_clock, 2),
            (self._unreadable, 2),
            (lambda: self._client("slots"), 2),
            (lambda: self._client("fork"), 2),
        ]
        if disk is not None:
            common.append((self._fill_disk, 1))
        if database is None:
            self._acts = [*common, (lambda: self._client("lock"), 2)]
        else:
            self._acts = [
                *common,
                (self._cut, 3),
                (lambda: self._client("transaction"), 2),
                (lambda: self._client("elsewhere"), 1),
                (self._restart_database, 1),
            ]
        for node in self.nodes:
            node.ready()

    def close(self) -> None:
        """No client is left behind, whatever ended the attack."""
        for process in self._clients:
            if process.poll() is None:
                process.kill()

    def _program(self) -> tuple[str, ...]:
        if self._database is None:
            return (CLOCK_PROGRAM, str(self._clock))
        return ("-m", "locktender")

    def _server(self) -> ClusterNode:
        return self._cluster.server(program=self._program(), **SETTINGS)

    def _worker(self) -> ClusterNode:
        return self._cluster.worker(STEPS_FILE, program=self._program(), **SETTINGS)

    def _leading(self) -> ClusterNode:
        return self._cluster.worker(STEPS_FILE, lead=True, program=self._program(), **SETTINGS)

    def go_on(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        shown = 0.0
        while time.monotonic() < end:
            self._due(time.monotonic())
            self._replace()
            acts, weights = zip(*self._acts, strict=True)
            try:
                self._chance.choices(acts, weights)[0]()
            except Exception as error:  # noqa: BLE001 — the store is away just now
                self._record.note(f"not done: {type(error).__name__}: {error}")
            idle = time.monotonic() - self._work.ended_at
            if idle > STALL_SECONDS and time.monotonic() > shown + STALL_SECONDS:
                shown = time.monotonic()
                self._say_stall(idle)
            time.sleep(self._chance.uniform(0.3, 2.5))
        self._due(float("inf"))
        while self._busy - {"store"}:
            time.sleep(0.1)
        self._replace()

    def _say_stall(self, idle: float) -> None:
        text = f"no run ended for {idle:.0f} s"
        with suppress(Exception):
            text += f"; {self._work.open[0].why().text()}"
        self._record.notes.append(text)
        self._record.note(f"STALL {text}")

    def _in(self, seconds: float, act: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, act))

    def _due(self, now: float) -> None:
        for item in list(self._later):
            if item[0] <= now:
                self._later.remove(item)
                try:
                    item[1]()
                except Exception as error:  # noqa: BLE001
                    self._record.note(f"not undone: {type(error).__name__}: {error}")

    def _replace(self) -> None:
        for place, node in enumerate(self.nodes):
            code = node.returncode
            if code is None:
                continue
            if code not in (-9, 0):
                self._record.exits[code] += 1
                lines = node.log.strip().splitlines()[-3:]
                self._record.note(f"node {node.pid} ended with {code}: {' | '.join(lines)}")
                if code not in EXPECTED_EXITS and NO_STORE not in "".join(lines):
                    self._record.find(f"node {node.pid} ended with {code}: {' | '.join(lines)}")
            self._stopped.discard(node.pid)
            self.nodes[place] = self._starts[place]()
            self._record.note(f"started {self.nodes[place].pid} in place {place}")

    def _any(self) -> ClusterNode | None:
        awake = [node for node in self.nodes if node.pid not in self._stopped]
        return self._chance.choice(awake) if len(awake) > 2 else None

    def _kill(self) -> None:
        if (node := self._any()) is not None:
            self._record.fault(f"kill {self._kind(node)}", node.pid)
            node.kill()

    def _kind(self, node: ClusterNode) -> str:
        return "server" if self.nodes.index(node) < 2 else "worker"

    def _terminate(self) -> None:
        if (node := self._any()) is not None:
            self._record.fault(f"SIGTERM {self._kind(node)}", node.pid)
            node.terminate()

    def _stop_short(self) -> None:
        self._pause("short", SHORT_STOP)

    def _stop_long(self) -> None:
        self._pause("long", LONG_STOP)

    def _pause(self, name: str, between: tuple[float, float]) -> None:
        node = self._any()
        if node is None or node.returncode is not None:
            return
        seconds = self._chance.uniform(*between)
        self._record.fault(f"stop {name} {self._kind(node)}", f"{node.pid} for {seconds:.1f} s")
        node.pause()
        self._stopped.add(node.pid)

        def wake() -> None:
            self._stopped.discard(node.pid)
            if node.returncode is None:
                self._record.note(f"woken {node.pid}")
                node.resume()

        self._in(seconds, wake)

    def _set_clock(self) -> None:
        by = self._chance.choice((30, -30))
        self._offset += by
        if self._database is None:
            new = self._clock.with_suffix(".new")
            new.write_text(str(self._offset))
            new.replace(self._clock)
        else:
            run_async(execute(self._cluster.url, SET_CLOCK.format(seconds=self._offset)))
        self._record.fault(f"clock {by:+} s", f"now {self._offset:+}")

    def _unreadable(self) -> None:
        """Beside the other faults: a submission waits where the store is busy."""
        if "unreadable" not in self._busy:
            self._busy.add("unreadable")
            threading.Thread(target=self._corrupt, daemon=True).start()

    def _corrupt(self) -> None:
        try:
            self._corrupt_one()
        except Exception as error:  # noqa: BLE001 — the store is away just now
            self._record.note(f"not done: {type(error).__name__}: {error}")
        finally:
            self._busy.discard("unreadable")

    def _corrupt_one(self) -> None:
        fault = self._chance.choice(HELD_FAULTS)
        number = len(self.victims)
        run = self._work.ask(
            lambda: self._work.client.submit(
                steps.victim(number), number, 0.3, key=f"victim-{number}", on_duplicate="attach"
            ),
            20,
        )
        injector = Injector(self._cluster.url)
        seq = injector.query("SELECT seq FROM {}run WHERE id = ?", run.id)[0][0]
        old = injector.value(fault.table, fault.column, seq)
        self.victims.append((run, seq, fault, old))
        if old is not None:
            injector.inject(fault, seq)
            self._record.fault(f"unreadable {fault.table}.{fault.column}", run.id)

    def _client(self, what: str) -> None:
        """A program beside ours: holds something, stands still in it, is killed."""
        if what in self._busy:
            return
        self._busy.add(what)
        with (self._clock.parent / "clients.err").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", CLIENT_PROGRAM, self._cluster.url, what, str(self._clock)],
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._clients.append(process)
        seconds = self._chance.uniform(2.0, 12.0)
        frozen = self._chance.random() < 0.5
        threading.Thread(
            target=self._hold, args=(process, what, seconds, frozen), daemon=True
        ).start()

    def _hold(
        self, process: subprocess.Popen[bytes], what: str, seconds: float, frozen: bool
    ) -> None:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != b"ready\n":
                self._record.note(f"client {what} {process.pid} was not ready")
                return
            named = f"client {what}{' frozen' if frozen else ''} killed"
            self._record.fault(named, f"{process.pid} for {seconds:.1f} s")
            if frozen:
                self._overlap.pause(process.pid)
            time.sleep(seconds)
            self._record.note(f"killed client {what} {process.pid}")
        finally:
            if process.poll() is None:
                self._overlap.kill(process.pid)
            process.wait()
            process.stdout.close()
            self._busy.discard(what)

    def _fill_disk(self) -> None:
        if self._disk is None or "store" in self._busy:
            return
        filler = self._disk / "filler"
        self._busy.add("store")
        space = os.statvfs(self._disk)
        with filler.open("wb", buffering=0) as file:
            size = max(0, space.f_bavail * space.f_frsize - MARGIN_BYTES)
            # Others write meanwhile: the last of it is taken until there is no more.
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, size)
                file.seek(size)
                while file.write(bytes(FILL_BYTES)):
                    pass
        seconds = self._chance.uniform(1.0, 6.0)
        self._record.fault("disk full", f"for {seconds:.1f} s")

        def empty() -> None:
            filler.unlink()
            self._record.note("disk has space again")
            if self._database is not None:
                with suppress(Exception):
                    self._database.start()
            self._busy.discard("store")

        self._in(seconds, empty)

    def _cut(self) -> None:
        some = self._chance.random() < 0.5
        query(self._cluster.url, END_BACKENDS + (" AND random() < 0.5" if some else ""))
        self._record.fault(f"connections cut, {'half' if some else 'all'}")

    def _restart_database(self) -> None:
        if self._database is None or "store" in self._busy:
            return
        self._busy.add("store")
        self._record.fault("PostgreSQL killed and restarted")
        self._database.kill()
        seconds = self._chance.uniform(0.0, 5.0)

        def start() -> None:
            assert self._database is not None
            took = self._database.start()
            self._record.note(f"PostgreSQL is back after {took:.1f} s")
            self._busy.discard("store")

        self._in(seconds, start)
