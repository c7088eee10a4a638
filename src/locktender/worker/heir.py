"""The heir: hands back what a worker could not end, once that worker is certainly gone.

Who runs this: a process of its own, started by a worker's process as its last act
(`python -m locktender.worker.heir`). At the end of the grace a thread may still be in a
body, and nothing stops it but the end of the process. The worker itself can hand its
task back neither before (another would begin beside it: between the commit and our
end lies whatever the machine, or a body that holds the interpreter's lock, makes of
it) nor after. So it leaves a will to somebody who waits until it is gone and acts in
its name: no limit is exceeded, no attempt is charged, and nobody waits for the lease.
It also removes the work directories: no body uses them any more.

It is a courtesy: where it cannot run (a worker that is process 1 of its container
takes everybody along) or the store does not answer, the lease ends by itself, and
by what the worker's row says (`WorkerRow.leaves`) no attempt is charged then either.
On SQLite a lock that the kernel lets go of says the same, in milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from locktender.base.config import Settings
from locktender.base.errors import LocktenderError
from locktender.base.states import TaskState
from locktender.store.protocol import Ended, Finish
from locktender.store.worker_changes import LEFT_BEHIND
from locktender.worker.executors import workdirs

LOOK_SECONDS = 0.005
MAX_WILL_BYTES = 32 * 1024
"""Less than a pipe takes without a reader: whoever ends does not wait for its heir."""
CHILDREN_SECONDS = 5.0
"""How long the worker's children, which end by themselves, may still be in its work directories."""


class Will(msgspec.Struct, frozen=True):
    url: str
    worker: str
    process: int
    tasks: list[tuple[int, int]]
    """(task, token) of what still runs."""
    lease_us: int
    """After that there is nothing left to hand back."""
    work_root: str


def appoint(
    settings: Settings, worker: str, tasks: Iterable[tuple[int, int]], work_root: Path
) -> bool:
    """Start the heir; whether there is one. The caller's process ends right after it."""
    if not settings.url.startswith(("postgresql://", "postgres://")) or os.getpid() == 1:
        return False
    lease_us = settings.worker_lease_us
    will = Will(settings.url, worker, os.getpid(), list(tasks), lease_us, str(work_root))
    raw = msgspec.json.encode(will)
    if len(raw) > MAX_WILL_BYTES:
        return False
    with suppress(OSError):  # no memory, no process: the lease has to do
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "locktender.worker.heir"],
            stdin=subprocess.PIPE,
            # Whoever reads what this process writes must not wait for the heir.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if process.stdin is not None:
            # Not an argument: everybody may read those, and the url may hold a password.
            process.stdin.write(raw)
            process.stdin.close()
            return True
    return False


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may be sent to all that a service has left
    will = msgspec.json.decode(sys.stdin.buffer.read(), type=Will)
    try:
        with suppress(LocktenderError, TimeoutError):
            asyncio.run(_inherit(will))
    finally:
        with suppress(TimeoutError):
            _await_end(will)
            _remove_work(Path(will.work_root))


async def _inherit(will: Will) -> None:
    # Only here: the driver is an extra.
    from locktender.store.postgres import PostgresStore  # noqa: PLC0415

    async with asyncio.timeout(will.lease_us / 1_000_000):
        store = PostgresStore(will.url).twin()
        await store.open()
        try:
            _await_end(will)
            ended = [
                Ended(task, token, TaskState.HANDED_BACK, None, LEFT_BEHIND, "drain")
                for task, token in will.tasks
            ]
            await store.finish(Finish(will.worker, ended))
            await store.leave(will.worker)
        finally:
            await store.close()


def _await_end(will: Will) -> None:
    """Returns when no thread of the worker's process runs any more: only then its orphans change parents."""
    until = time.monotonic() + will.lease_us / 1_000_000
    while os.getppid() == will.process:
        if time.monotonic() > until:
            raise TimeoutError("the worker does not end")
        time.sleep(LOOK_SECONDS)


def _remove_work(root: Path) -> None:
    until = time.monotonic() + CHILDREN_SECONDS
    while not workdirs.inherit(root) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
