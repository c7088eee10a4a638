"""What workers on demand cost: seconds that worker processes lived, beside what the work needs at least.

The bound is 1.3 × work ÷ permits, plus start-up and `idle_exit` of each worker; below it, where the seconds went.

    python -m bench elastic
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import psutil

from bench import cluster_steps as steps
from bench.report import Figure
from bench.worker_seconds import ProcessLife, Work, cost_figures
from locktender import connect
from locktender.testing import load_history

TASKS, SECONDS = 400, 0.1
WORKERS, PERMITS = 2, 4
IDLE_SECONDS = 2
LOOK_SECONDS = 0.01
PATIENCE = "300s"


class _Watch(threading.Thread):
    """When each child of the server began and ended."""

    def __init__(self, server: int) -> None:
        super().__init__(daemon=True)
        self._server = psutil.Process(server)
        self._over = threading.Event()
        self.began: dict[int, float] = {}
        self.ended: dict[int, float] = {}

    def run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            now = time.time()
            alive = {child.pid: child for child in self._server.children() if _runs(child)}
            for pid, child in alive.items():
                if pid not in self.began:
                    self.began[pid] = child.create_time()
            for pid in self.began.keys() - alive.keys() - self.ended.keys():
                self.ended[pid] = now

    def stop(self) -> None:
        self._over.set()
        self.join()

    @property
    def lives(self) -> list[ProcessLife]:
        return [ProcessLife(pid, began, self.ended[pid]) for pid, began in self.began.items()]


def _runs(child: psutil.Process) -> bool:
    """A process that has ended is a child until the server has asked for its exit code, up to a second later."""
    try:
        return child.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        return _local(str(Path(folder) / "bench.db"), folder)


def _local(url: str, folder: str) -> list[Figure]:
    sets = {
        "total_permits": PERMITS,
        "async_permits": PERMITS,
        "provision_interval": "100ms",
        "provisioned_idle_exit": f"{IDLE_SECONDS}s",
        "work_dir": f"{folder}/work",
    }
    flags = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    command = ["server", "--port", "0", "--spawn", "bench.cluster_steps", *flags]
    process = subprocess.Popen(
        [sys.executable, "-m", "locktender", *command, "--max-workers", str(WORKERS), "--url", url,
         "--json", "--with-parent"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        if process.stdout is None:
            raise LookupError("the server has no output")
        msgspec.json.decode(process.stdout.readline())
        watch = _Watch(process.pid)
        watch.start()
        with connect(url) as client:
            client.pools.set("ten", limit=-1)
            client.limits.set_max_concurrent_runs(-1)
            began = time.time()
            client.submit(steps.pool_of_ten, [SECONDS] * TASKS).result(PATIENCE)
            wall = time.time() - began
            while len(watch.ended) < len(watch.began):
                time.sleep(LOOK_SECONDS)
        watch.stop()
    finally:
        process.terminate()
        process.wait()
    count = len(watch.began)
    work = Work(TASKS, SECONDS, PERMITS, IDLE_SECONDS)
    return [
        Figure(f"{TASKS} tasks of {SECONDS * 1e3:.0f} ms, workers of {PERMITS} permits: workers", count, "",
               f"≤ {WORKERS}", count <= WORKERS),
        Figure("… from submission to the last result", wall, "s"),
        *cost_figures(watch.lives, load_history(url).events, work),
    ]  # fmt: skip
