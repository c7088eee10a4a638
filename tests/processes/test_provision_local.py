"""B6, B8, B15: real worker processes, started on overflow, counted, and ended with whoever started them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from tests.conftest import broken_promises

from locktender import RunState, connect_async
from locktender.base.config import Settings
from locktender.base.model import WorkerRow
from locktender.cli.load_flow import load
from locktender.engine import Engine
from locktender.provision.controller import ProvisionController
from locktender.provision.local import LocalProvisioner, worker_command
from locktender.provision.protocol import Provisioned
from locktender.store.open import settings_for, store_for

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

PATIENCE = 60.0
T = TypeVar("T")

FLOWS = """
import asyncio
import os

from locktender import flow, step


def mark(path: str, text: str) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(fd, f"{text}\\n".encode())
    os.close(fd)


def begun(path: str) -> int:
    with open(path) as file:
        return file.read().split().count("begin")


@step
async def work(marks: str, together: int) -> int:
    mark(marks, "begin")
    while begun(marks) < together:  # so many are in it at once, before the first goes on
        await asyncio.sleep(0.01)
    mark(marks, "end")
    return os.getpid()


@flow
def one(marks: str, together: int):
    return work(marks, together)
"""


async def until(look: Callable[[], Awaitable[T]], what: str) -> T:
    """The first answer that is true."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not (found := await look()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return found
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


def write_flows(folder: Path, name: str = "elastic_flows") -> Path:
    """Each test that loads it here needs a name of its own: a process knows one module by it."""
    file = folder / f"{name}.py"
    file.write_text(FLOWS)
    return file


def settings_of(url: Path, **overrides: object) -> Settings:
    return settings_for(
        url, {"max_workers": 3, "total_permits": 1, "provision_interval": "100ms", **overrides}
    )


def local(source: Path, settings: Settings, **given: str) -> LocalProvisioner:
    sets = {"total_permits": "1", "grace": "2s", **given}
    return LocalProvisioner(worker_command([str(source)], settings, sets), settings)


def by_name(listed: list[Provisioned]) -> dict[str, Provisioned]:
    return {each.name: each for each in listed}


async def test_workers_start_join_and_drain_when_released(url: Path, tmp_path: Path):
    settings = settings_of(url)
    store = store_for(settings)
    await store.open()
    provisioner = local(write_flows(tmp_path), settings)
    try:
        names = ["client-one", "client-two"]
        assert await provisioner.request(2, {}, "for a test", names) == names
        assert await provisioner.request(2, {}, "for a test", names) == names  # the same two
        assert {each.state for each in await provisioner.list()} == {"running"}

        async def joined() -> list[WorkerRow]:
            rows = await store.workers()
            return rows if len(rows) == 2 else []

        rows = await until(joined, "two workers")
        assert [set(row.steps or {}) for row in rows] == [{"elastic_flows:work"}] * 2
        pids = {row.pid for row in rows}

        await provisioner.release(names[0])
        await provisioner.release("never-heard-of")

        async def ended() -> bool:
            return by_name(await provisioner.list())[names[0]].state == "ended"

        await until(ended, "the released one to end")
        assert by_name(await provisioner.list())[names[1]].state == "running"
        assert len([pid for pid in pids if psutil.pid_exists(pid)]) == 1
    finally:
        await provisioner.close()
        await store.close()
    assert {each.state for each in await provisioner.list()} == {"ended"}
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not any(path.is_file() for path in (Path(settings.work_dir) / "workers").rglob("*"))
    assert await provisioner.request(1, {}, "after the close", ["client-late"]) == []


async def test_the_log_of_a_worker_that_dies_at_start_is_shown(url: Path, tmp_path: Path):
    broken = tmp_path / "broken.py"
    broken.write_text("import a_module_nobody_has\n")
    provisioner = local(broken, settings_of(url))
    try:
        [name] = await provisioner.request(1, {}, "for a test", ["client-broken"])

        async def failed() -> Provisioned | None:
            found = by_name(await provisioner.list())[name]
            return found if found.state != "running" else None

        found = await until(failed, "it to fail")
    finally:
        await provisioner.close()
    assert found is not None
    assert found.state == "failed"
    assert "exit code" in found.detail
    assert "ModuleNotFoundError: No module named 'a_module_nobody_has'" in found.detail
    assert not any(way in found.detail for way in ("Traceback", "File ", "^^", "|"))
    assert f"{name}.log" in found.detail


async def test_labels_this_machine_does_not_have_are_not_provided(url: Path, tmp_path: Path):
    settings = settings_of(url, worker_labels={"gpu": "a100"})
    provisioner = local(write_flows(tmp_path), settings)
    assert provisioner.capacity({"gpu": "h100"}) is None
    capacity = provisioner.capacity({"gpu": "a100"})
    assert capacity is not None
    assert (capacity.total, capacity.labels) == (1, {"gpu": "a100"})
    await provisioner.close()


_PARENT = """
import asyncio, sys
from pathlib import Path
from locktender.store.open import settings_for
from locktender.provision.local import LocalProvisioner, worker_command

async def main():
    settings = settings_for(sys.argv[2], {"max_workers": 1})
    provisioner = LocalProvisioner(worker_command([sys.argv[1]], settings, {"grace": "1s"}), settings)
    await provisioner.request(1, {}, "for a test", ["client-orphan"])
    [one] = await provisioner.list()
    print(one.detail.split(",")[0].removeprefix("pid "), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_worker_does_not_outlive_who_started_it(url: Path, tmp_path: Path):
    source = write_flows(tmp_path)
    store = store_for(settings_of(url))
    await store.open()
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", _PARENT, str(source), str(url)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())

        async def joined() -> list[WorkerRow]:
            return await store.workers()

        [row] = await until(joined, "the worker")
        assert row.pid == pid
        # Whoever else starts workers here sees it too, and when it has gone.
        other = local(source, settings_of(url))
        assert by_name(await other.list())["client-orphan"].state == "running"
        await other.release("client-orphan")
        await other.close()
        assert psutil.pid_exists(pid)  # what it did not start it does not end
        parent.send_signal(signal.SIGKILL)
        parent.wait()

        async def gone() -> bool:
            listed = by_name(await other.list())
            return listed["client-orphan"].state == "ended" and not await store.workers()

        await until(gone, "the worker to leave and end")
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    finally:
        parent.kill()
        parent.wait()
        if parent.stdout is not None:
            parent.stdout.close()
        await store.close()


@asynccontextmanager
async def leading(
    settings: Settings, provisioner: LocalProvisioner
) -> AsyncGenerator[ProvisionController]:
    """A leader without a worker, and its provisioner."""
    store = store_for(settings)
    await store.open()
    overflow = ProvisionController(provisioner, settings)
    engine = Engine(store, settings, work=False, overflow=overflow)
    await engine.start()
    try:
        yield overflow
    finally:
        await overflow.close()
        await engine.stop()
        await store.close()


def peak(marks: Path) -> int:
    running = most = 0
    for line in marks.read_text().splitlines():
        running += 1 if line == "begin" else -1
        most = max(most, running)
    return most


async def test_b8_what_overflows_is_done_by_at_most_so_many_workers(url: Path, tmp_path: Path):
    source, marks = write_flows(tmp_path, "elastic_story"), tmp_path / "marks"
    settings = settings_of(url, max_concurrent_runs=20)
    flow = load(str(source))
    async with leading(settings, local(source, settings)) as overflow, connect_async(url) as client:
        runs = [await client.submit(flow, str(marks), 3) for _ in range(6)]
        pids = [await run.result(PATIENCE) for run in runs]
        assert overflow.policy.requested <= 3
    assert len(set(pids)) == 3
    assert os.getpid() not in pids
    assert peak(marks) == 3
    assert not any(psutil.pid_exists(int(pid)) for pid in set(pids))
    assert await asyncio.to_thread(broken_promises, url) == []


async def test_b6_a_failing_provisioner_fails_no_task(url: Path, tmp_path: Path):
    source, broken = write_flows(tmp_path, "elastic_failing"), tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no licence for this machine')\n")
    settings = settings_of(url, provision_cooldown="1h")  # it asks once, however long this takes
    flow = load(str(source))
    async with leading(settings, local(broken, settings)) as overflow, connect_async(url) as client:
        run = await client.submit(flow, str(tmp_path / "marks"), 1)

        async def told() -> bool:
            return "no licence for this machine" in overflow.policy.last_error

        await until(told, "the failure to be told")
        assert "; cools down " in overflow.describe()
        begins = "Provisioner: none of at most 3 workers is on its way; cools "

        async def noted() -> str:
            note = (await run.why()).note  # what the leader has told the store by now
            return note if note.startswith(begins) else ""

        assert "no licence for this machine" in await until(noted, "the note")
        asked = overflow.policy.requested
        assert await run.status() == RunState.RUNNING
        [task] = await run.tasks()
        assert task.state == "requested"
        assert asked == overflow.policy.requested == 1


async def test_a_command_that_ends_well_and_never_joins_is_a_failure(url: Path, tmp_path: Path):
    source, quits = write_flows(tmp_path, "elastic_quits"), tmp_path / "quits.py"
    quits.write_text("import sys\nprint('nothing to do', flush=True)\nsys.exit(0)\n")
    settings = settings_of(url, provision_cooldown="1h")
    command = [sys.executable, str(quits)]
    provisioner = LocalProvisioner(command, settings)
    flow = load(str(source))
    async with leading(settings, provisioner) as overflow, connect_async(url) as client:
        run = await client.submit(flow, str(tmp_path / "marks"), 1)

        async def told() -> bool:
            return overflow.policy.failures > 0

        await until(told, "the failure")
        assert "ended before it had joined: exit code 0: nothing to do" in overflow.describe()
        assert "; cools down " in overflow.describe()
        assert overflow.policy.requested == 1
        await run.cancel()


async def test_why_says_that_nobody_starts_workers(url: Path, tmp_path: Path):
    source = write_flows(tmp_path, "elastic_nobody")
    settings = settings_of(url)
    flow = load(str(source))
    store = store_for(settings)
    await store.open()
    engine = Engine(store, settings, work=False)
    await engine.start()
    try:
        async with connect_async(url) as client:
            run = await client.submit(flow, str(tmp_path / "marks"), 1)

            note = "No provisioner: workers are started by hand."

            async def says() -> bool:
                return (await run.why()).note == note

            await until(says, "the note")
            assert note in str(await run.why())
            await run.cancel()
    finally:
        await engine.stop()
        await store.close()
