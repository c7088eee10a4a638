"""Child processes: whichever dies, only its own task fails, and no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.portable import only_linux

from locktender.base.clock import SystemClock
from locktender.worker.executors import sources
from locktender.worker.executors.protocol import Attempt, Outcome
from locktender.worker.executors.sources import CodeSource

_harness: Any = sources.load(
    sources.CodeSource(
        "locktender_executor_harness",
        str(Path(__file__).parents[1] / "support" / "executor_harness.py"),
    )
)
Harness, STEPS, alive, group_alive, until = (
    _harness.Harness, _harness.STEPS, _harness.alive, _harness.group_alive, _harness.until
)  # fmt: skip

SECOND = 1_000_000
DESCENDANTS = only_linux("a list of what a process has started, in whichever session that is")


def guard_of(worker: int) -> int:
    """The guard a worker has started, found by its command and its parent."""
    for each in psutil.Process(worker).children():
        with suppress(psutil.Error):
            if any("executors/guard.py" in word for word in each.cmdline()):
                return each.pid
    raise AssertionError(f"worker {worker} has no guard")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
async def test_a_killed_child_fails_only_its_own_task(number: signal.Signals, tmp_path: Path):
    async with Harness("process", tmp_path) as harness:
        other = harness.start("hang")
        await harness.begun(other)
        outcome = await harness.run("die", int(number))

        assert outcome.state == "failed"
        assert outcome.failure.type == "worker_crashed"
        assert number.name in outcome.failure.message
        assert outcome.failure.retryable
        assert harness.executor.in_flight == 1  # the other goes on
        assert await harness.run("double", 1) == Outcome(
            "completed", b"2"
        )  # and the child is replaced


@pytest.mark.parametrize("how", ["spawn_and_hang", "fork_and_hang"])
async def test_a_service_managers_sigterm_does_not_end_a_body(how: str, tmp_path: Path):
    """Sent to all processes of a worker: the worker drains, and its bodies may finish."""
    async with Harness("process", tmp_path, permits=1) as harness:
        (child,) = [json.loads((await harness.run("pid")).output)]
        job = harness.start(how)
        marker = harness.marker(job, "grandchild")
        await until(lambda: marker.exists() and marker.read_text())
        grandchild = int(marker.read_text())

        os.kill(child, signal.SIGTERM)
        os.kill(grandchild, signal.SIGTERM)  # it has not inherited this

        await until(lambda: not alive(grandchild))
        assert alive(child)
        harness.executor.stop(job.token, "cancel")
        assert (await harness.end_of(job)).state == "cancelled"


@pytest.mark.parametrize("code", [0, 3])
async def test_a_child_that_ends_itself(code: int, tmp_path: Path):
    async with Harness("process", tmp_path) as harness:
        outcome = await harness.run("vanish", code)

        assert outcome.failure.type == "worker_crashed"
        assert f"exit code {code}" in outcome.failure.message


async def test_what_a_body_started_is_killed_with_it(tmp_path: Path):
    async with Harness("process", tmp_path) as harness:
        job = harness.start("spawn_and_hang")
        marker = harness.marker(job, "grandchild")
        await until(lambda: marker.exists() and marker.read_text())
        grandchild = int(marker.read_text())
        (child,) = harness.executor.pids
        assert alive(grandchild)
        harness.executor.stop(job.token, "cancel")

        assert (await harness.end_of(job)).state == "cancelled"
        assert not alive(child)
        await until(lambda: not alive(grandchild))


@DESCENDANTS
@pytest.mark.parametrize("reason", ["cancel", "timeout", "deadline"])
async def test_what_has_a_session_of_its_own_is_killed_with_its_body(reason: str, tmp_path: Path):
    async with Harness("process", tmp_path) as harness:
        job = harness.start("daemonise_and_hang")
        await harness.begun(job)
        daemons = json.loads((tmp_path / "daemons").read_text())
        assert all(alive(pid) for pid in daemons)
        if reason == "deadline":
            harness.executor.extend(SystemClock().monotonic() - 1)
        else:
            harness.executor.stop(job.token, reason)
        await harness.end_of(job)

        await until(lambda: not any(alive(pid) for pid in daemons))


@DESCENDANTS
async def test_a_daemon_of_a_body_ends_when_its_child_is_killed(
    tmp_path: Path,
):
    """As out of memory: its parents are gone with it. When the end is told, nothing runs any more."""
    async with Harness("process", tmp_path) as harness:
        job = harness.start("daemonise_and_hang")
        child = await harness.begun(job)
        daemons = json.loads((tmp_path / "daemons").read_text())
        other = harness.start("spawn_and_hang")
        marker = harness.marker(other, "grandchild")
        await until(lambda: marker.exists() and marker.read_text())

        os.kill(child, signal.SIGKILL)
        outcome = await harness.end_of(job)

        assert outcome.failure.type == "worker_crashed"
        assert [pid for pid in daemons if alive(pid)] == []
        assert alive(int(marker.read_text()))  # another child's is not touched
        harness.executor.stop(other.token, "cancel")
        await harness.end_of(other)


@DESCENDANTS
@pytest.mark.parametrize("how", ["return", "fail"])
async def test_c3_what_a_body_leaves_running_ends_with_it(how: str, tmp_path: Path):
    """Also what has put itself into a session of its own; the child stays warm."""
    async with Harness("process", tmp_path, permits=1) as harness:
        child = (await harness.run("pid")).output
        outcome = await harness.run("leave_running", how)
        left = json.loads((tmp_path / "left").read_text())

        assert outcome.state == ("completed" if how == "return" else "failed")
        assert len(left) == 2
        assert [pid for pid in left if alive(pid)] == []
        assert (await harness.run("pid")).output == child


HELPED = """
import json, subprocess
from types import SimpleNamespace

helper = subprocess.Popen(["sleep", "3600"])
STEPS = {
    "pid": SimpleNamespace(
        fn=lambda: helper.poll() is None,
        retry_on=None,
        decode_call=lambda raw: ([], {}),
        encode_result=lambda value: json.dumps(value).encode(),
    )
}
"""


async def test_a_process_that_a_module_starts_is_there_for_every_body(tmp_path: Path):
    (tmp_path / "helped.py").write_text(HELPED)
    root = tmp_path / "root"
    root.mkdir()
    source = CodeSource("helped", str(tmp_path / "helped.py"))
    async with Harness("process", root, permits=1, steps="helped:STEPS") as harness:
        for token in (1, 2):
            job = Attempt(token, token, "run", STEPS["pid"], b"[]", source=source)
            harness.executor.start(job, harness._done)
            outcome = await harness.end_of(job)
            assert outcome.output == b"true", outcome


async def test_a_death_is_noticed_though_a_fork_holds_the_line(tmp_path: Path):
    async with Harness("process", tmp_path) as harness:
        outcome = await harness.run("fork_and_die")
        fork = int((tmp_path / "fork").read_text())

        assert outcome.failure.type == "worker_crashed"
        await until(lambda: not alive(fork))


async def test_children_are_warm_and_one_per_permit(tmp_path: Path):
    async with Harness("process", tmp_path, permits=2) as harness:
        assert harness.executor.pids == []
        pids = {(await harness.run("pid")).output for _ in range(10)}
        assert len(pids) == 1

        first, second = harness.start("hang"), harness.start("hang")
        both = {await harness.begun(first), await harness.begun(second)}

        assert both == set(harness.executor.pids)
        for pid in both:
            assert os.getsid(pid) == os.getpgid(pid) == pid
        assert os.getsid(0) not in both


SLOW_TO_IMPORT = """
import json, time
from types import SimpleNamespace

time.sleep(5.5)
STEPS = {
    "pid": SimpleNamespace(
        fn=lambda: True,
        retry_on=None,
        decode_call=lambda raw: ([], {}),
        encode_result=lambda value: json.dumps(value).encode(),
    )
}
"""


async def test_a_timeout_does_not_count_the_start_of_the_child(tmp_path: Path):
    """The child takes longer to start than the body may take."""
    (tmp_path / "slow.py").write_text(SLOW_TO_IMPORT)
    root = tmp_path / "root"
    root.mkdir()
    source = CodeSource("slow", str(tmp_path / "slow.py"))
    async with Harness("process", root, steps="slow:STEPS") as harness:
        job = Attempt(1, 1, "run", STEPS["pid"], b"[]", source=source, timeout_us=5 * SECOND)
        harness.executor.start(job, harness._done)
        assert (await harness.end_of(job)).state == "completed"


async def test_the_deadline_in_shared_memory_ends_children(tmp_path: Path):
    clock = SystemClock()
    async with Harness("process", tmp_path) as harness:
        harness.executor.extend(clock.monotonic() + 60 * SECOND)
        job = harness.start("spawn_and_hang")
        marker = harness.marker(job, "grandchild")
        await until(lambda: marker.exists() and marker.read_text())
        grandchild = int(marker.read_text())
        harness.executor.extend(clock.monotonic() - 1)

        outcome = await harness.end_of(job)
        assert outcome.failure.type == "worker_crashed"
        await until(lambda: not alive(grandchild))

        harness.executor.extend(clock.monotonic() + 60 * SECOND)
        assert (await harness.run("double", 2)).state == "completed"


async def test_a_lease_renewed_without_children_changes_nothing(tmp_path: Path):
    harness = Harness("process", tmp_path)
    await harness.run("double", 1)
    assert await harness.executor.close(0) == []

    harness.executor.extend(SystemClock().monotonic() + 60 * SECOND)


async def test_calls_and_results_larger_than_the_lines_buffer(tmp_path: Path):
    async with Harness("process", tmp_path, max_result=None) as harness:
        text = "x" * (5 << 20)

        assert (await harness.run("length", text)).output == str(len(text)).encode()
        assert len((await harness.run("grow", 5 << 20)).output) == (5 << 20) + 2


async def test_only_the_descriptors_named_are_inherited(tmp_path: Path):
    root = tmp_path / "root"
    root.mkdir()
    with (tmp_path / "lock").open("w") as lock, (tmp_path / "other").open("w") as other:
        os.set_inheritable(other.fileno(), True)
        async with Harness("process", root, keep_fds=[lock.fileno()]) as harness:
            found = (await harness.run("open_fds")).output.decode()

    lock_state, other_state = ((tmp_path / name).stat() for name in ("lock", "other"))
    assert f'"{lock_state.st_dev}:{lock_state.st_ino}"' in found
    assert f'"{other_state.st_dev}:{other_state.st_ino}"' not in found


async def test_a_body_that_writes_on_the_line_loses_only_itself(tmp_path: Path):
    async with Harness("process", tmp_path) as harness:
        failure = (await harness.run("scribble")).failure
        assert failure.type == "worker_crashed"
        assert failure.message.startswith(
            "the process that ran the step was ended by its worker: what"
        )
        assert (await harness.run("double", 1)).state == "completed"


async def test_a_body_that_closes_the_line_is_told_so(tmp_path: Path):
    async with Harness("process", tmp_path) as harness:
        failure = (await harness.run("close_the_line")).failure
        assert failure.type == "worker_crashed"
        assert failure.message.endswith("by its worker: it has closed its socket to the worker")
        assert (await harness.run("double", 1)).state == "completed"


async def test_a_module_that_does_not_import_fails_the_task(tmp_path: Path):
    (tmp_path / "broken.py").write_text("import sys\nsys.exit('no')\n")
    async with Harness("process", tmp_path) as harness:
        job = Attempt(
            1,
            1,
            "run",
            STEPS["double"],
            b"[1]",
            source=CodeSource("broken", str(tmp_path / "broken.py")),
        )
        harness.executor.start(job, harness._done)
        outcome = await harness.end_of(job)

        assert outcome.failure.type == "SystemExit"
        assert (await harness.run("double", 1)).state == "completed"


async def test_a_step_the_child_does_not_know(tmp_path: Path):
    async with Harness("process", tmp_path) as harness:
        step = type(STEPS["double"])("doubel", STEPS["double"].fn)
        job = Attempt(1, 1, "run", step, b"[1]", source=_harness.SOURCE)
        harness.executor.start(job, harness._done)
        outcome = await harness.end_of(job)

    assert outcome.failure.type == "unknown_step"
    assert "Did you mean 'double'?" in outcome.failure.message


async def test_what_a_body_prints_is_not_lost(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    async with Harness("process", tmp_path) as harness:
        await harness.run("print_something")

        assert "from the body" in capfd.readouterr().out


async def test_a_child_that_cannot_be_started_fails_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with Harness("process", tmp_path) as harness:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(tmp_path / "no-such-python"))
            outcome = await harness.run("double", 1)

        assert outcome.failure.message.startswith("internal: FileNotFoundError")
        assert (await harness.run("double", 1)).state == "completed"


async def test_without_a_guard_children_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def refuse(_: object) -> None:
        raise OSError("no more processes")

    async with Harness("process", tmp_path) as harness:
        monkeypatch.setattr(harness.executor._guard, "_start", lambda: refuse(None))

        assert (await harness.run("double", 1)).state == "completed"

    assert "no more processes" in caplog.text


async def test_a_step_without_a_file_says_what_to_do(tmp_path: Path):
    async with Harness("process", tmp_path) as harness:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec("def nowhere(): pass", names)  # as typed at a prompt
        step = type(STEPS["double"])("nowhere", names["nowhere"])
        main = sys.modules["__main__"]
        sys.modules["__main__"] = type(main)("__main__")
        try:
            job = Attempt(1, 1, "run", step, b"")
            harness.executor.start(job, harness._done)
            outcome = await harness.end_of(job)
        finally:
            sys.modules["__main__"] = main

    assert outcome.failure.type == "step_not_importable"
    assert "executor='thread'" in outcome.failure.message
    assert not outcome.failure.retryable


async def test_the_worker_removes_a_killed_childs_directory(tmp_path: Path):
    async with Harness("process", tmp_path) as harness:
        job = harness.start("die", int(signal.SIGKILL))
        await harness.end_of(job)

        assert not harness.marker(job).parent.exists()


WORKER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import executor_steps
from locktender.base.clock import SystemClock
from locktender.worker.executors.process import ProcessExecutor
from locktender.worker.executors.protocol import Attempt

async def main():
    executor = ProcessExecutor(1, clock=SystemClock(), steps="executor_steps:STEPS")
    executor.extend(SystemClock().monotonic() + int(sys.argv[3]))
    step = executor_steps.STEPS[sys.argv[4]]
    executor.start(Attempt(1, 1, "run", step, b"", work_root=Path(sys.argv[1])), print)
    while seconds := await asyncio.to_thread(sys.stdin.readline):
        executor.extend(SystemClock().monotonic() + int(seconds))
        print("extended", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Any]:
    """A worker in a process of its own, whose child hangs; gives the worker and the child's pid."""
    started: list[subprocess.Popen[bytes]] = []

    async def start(
        deadline_us: int, step: str = "spawn_and_hang", file: str = "grandchild"
    ) -> tuple[subprocess.Popen[bytes], int]:
        arguments = [
            str(tmp_path),
            str(Path(__file__).parents[1] / "steps"),
            str(deadline_us),
            step,
        ]
        command = [sys.executable, "-c", WORKER, *arguments]
        started.append(  # to be killed and frozen
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220
        )
        marker = tmp_path / "1" / "1" / file
        await until(lambda: marker.exists() and marker.read_text())
        return started[0], int(marker.read_text())

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


async def test_all_descendants_die_with_their_worker(worker: Any):
    process, grandchild = await worker(3600 * SECOND)
    child, guard = os.getpgid(grandchild), guard_of(process.pid)
    assert child != os.getpgid(process.pid)

    process.kill()

    await until(lambda: not group_alive(child))
    await until(lambda: not alive(guard))


@DESCENDANTS
async def test_a_daemon_of_a_body_ends_when_the_worker_is_killed(worker: Any, tmp_path: Path):
    process, child = await worker(3600 * SECOND, "daemonise_and_hang", "file")
    daemons = json.loads((tmp_path / "daemons").read_text())
    assert all(alive(pid) for pid in daemons)
    guard = guard_of(process.pid)
    # It comes late: the child is gone then, and its descendants have other parents.
    os.kill(guard, signal.SIGSTOP)

    process.kill()
    await until(lambda: not alive(child))
    os.kill(guard, signal.SIGCONT)

    await until(lambda: not any(alive(pid) for pid in daemons))


async def test_b12_children_of_a_frozen_worker_end_at_the_deadline(worker: Any):
    process, grandchild = await worker(3600 * SECOND)
    child = os.getpgid(grandchild)
    process.stdin.write(b"%d\n" % SECOND)
    process.stdin.flush()
    assert process.stdout.readline() == b"extended\n"
    process.send_signal(signal.SIGSTOP)

    # A frozen worker cannot reap: what matters is that the bodies no longer run.
    await until(lambda: not group_alive(child))
    assert process.poll() is None


async def test_a_body_that_holds_the_gil_ends_at_the_deadline(tmp_path: Path):
    async with Harness("process", tmp_path) as harness:
        job = harness.start("hold_the_lock")
        await harness.begun(job)
        harness.executor.extend(SystemClock().monotonic() - 1)

        assert (await harness.end_of(job)).failure.type == "worker_crashed"


async def test_a_guard_that_was_killed_is_replaced(tmp_path: Path):
    async with Harness("process", tmp_path) as harness:
        first = harness.start("hang")
        await harness.begun(first)
        guard = harness.executor._guard
        before = guard.pid
        os.kill(before, signal.SIGKILL)
        await until(lambda: not alive(before))
        second = harness.start("hang")
        await harness.begun(second)

        assert guard.pid != before
        harness.executor.extend(SystemClock().monotonic() - 1)
        for job in (first, second):
            assert (await harness.end_of(job)).state == "failed"

    assert guard.pid is None


def test_a_child_whose_parent_is_already_gone_ends_at_once(tmp_path: Path):
    with (tmp_path / "deadline").open("w+b") as file:
        file.truncate(65536)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "locktender.worker.executors.child",
                "0",
                str(file.fileno()),
                "1",
            ],
            pass_fds=[file.fileno()],
            start_new_session=True,
            timeout=90,
        )

    assert done.returncode == -signal.SIGKILL


SCRIPT = """
import asyncio
from locktender.flows.steps import step
from locktender.base.clock import SystemClock
from locktender.flows.registry import registry
from locktender.worker.executors.process import ProcessExecutor
from locktender.worker.executors.current import current
from locktender.worker.executors.protocol import Attempt

print("imported as", __name__, flush=True)

@step(executor="process")
def index(path: str) -> int:
    job = current()
    return len(path) + job.attempt

async def main():
    executor = ProcessExecutor(1, clock=SystemClock())
    ended = asyncio.get_running_loop().create_future()
    (definition,) = registry.steps.values()
    job = Attempt(1, 1, "run", definition, b'{"args": ["abc"], "kwargs": {}}')
    executor.start(job, lambda job, outcome: ended.set_result(outcome))
    print(await ended, flush=True)
    await executor.close(0)

if __name__ == "__main__":
    print("guarded", flush=True)
    asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["file", "module"])
def test_a_script_is_imported_but_not_run_again(tmp_path: Path, how: str):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "script.py").write_text(SCRIPT)
    command = ["package/script.py"] if how == "file" else ["-m", "package.script"]

    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=90
    )

    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "imported as __main__",
        "guarded",
        "imported as __mp_main__",
        "Outcome(state='completed', output=b'4', failure=None, reason=None, log=None, log_lines=0, log_at=0)",
    ]
