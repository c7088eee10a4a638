"""Bodies for the tests of the executors; imported by the tests and, by path, by their child processes."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from locktender.worker.executors.protocol import CURRENT, Attempt


@dataclass(frozen=True)
class StubStep:
    name: str
    fn: Callable[..., Any]
    retry_on: tuple[type[BaseException], ...] | None = None

    def decode_call(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        return (json.loads(raw) if raw else []), {}

    def encode_result(self, value: Any) -> bytes:
        return json.dumps(value).encode()


STEPS: dict[str, StubStep] = {}


def body(*, retry_on: tuple[type[BaseException], ...] | None = None) -> Callable[[Any], Any]:
    def register(fn: Any) -> Any:
        STEPS[fn.__name__] = StubStep(fn.__name__, fn, retry_on)
        return fn

    return register


def here() -> Attempt:
    return CURRENT.get()


def leave_a_file() -> None:
    (here().workdir / "file").write_text(str(os.getpid()))


@body()
def double(value: int) -> int:
    leave_a_file()
    return 2 * value


@body()
async def double_async(value: int) -> int:
    leave_a_file()
    await asyncio.sleep(0)
    return 2 * value


@body()
def give_up(value: int) -> int:
    raise GeneratorExit(value)


@body()
async def give_up_async(value: int) -> int:
    await asyncio.sleep(0)
    raise GeneratorExit(value)


@body(retry_on=(OSError,))
def fail() -> None:
    leave_a_file()
    raise ValueError("no such luck")


@body(retry_on=(OSError,))
async def fail_async() -> None:
    fail()


@body()
def leave() -> None:
    leave_a_file()
    sys.exit(3)


@body()
async def leave_async() -> None:
    leave()


@body()
def interrupt() -> None:
    raise KeyboardInterrupt


@body()
async def interrupt_async() -> None:
    raise KeyboardInterrupt


@body()
def odd() -> object:
    leave_a_file()
    return object()


@body()
async def odd_async() -> object:
    return odd()


@body()
def large() -> str:
    return "x" * (3 << 20)


@body()
async def large_async() -> str:
    return large()


@body()
def hang() -> None:
    """Never returns by itself, except in a thread, which can only be asked."""
    leave_a_file()
    in_thread = threading.current_thread() is not threading.main_thread()
    while not (in_thread and here().stop_reason):
        time.sleep(0.002)


@body()
async def hang_async() -> None:
    leave_a_file()
    await asyncio.Event().wait()


@body()
def overstay(seconds: float) -> str:
    leave_a_file()
    time.sleep(seconds)
    return "late"


@body()
def end_on_go() -> int:
    """Ends when the test says so."""
    leave_a_file()
    while not (here().workdir / "go").exists():
        time.sleep(0.002)
    return 42


@body()
async def overstay_async(seconds: float) -> str:
    time.sleep(seconds)  # noqa: ASYNC251 — the loop is held: no timer ends it
    return "late"


@body()
async def unstopped_async() -> str:
    """Swallows its cancellation and goes on for a while."""
    leave_a_file()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        (here().workdir / "swallowed").touch()
        while not (here().workdir / "go").exists():  # noqa: ASYNC110 — the test makes it
            await asyncio.sleep(0.002)
    return "done after all"


@body()
def die(number: int) -> None:
    leave_a_file()
    os.kill(os.getpid(), number)
    signal.pause()


@body()
def vanish(code: int) -> None:
    leave_a_file()
    os._exit(code)


@body()
def spawn_and_hang() -> None:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    (here().workdir / "grandchild").write_text(str(started.pid))
    while True:
        time.sleep(1)


@body()
def leave_running(how: str) -> list[int]:
    """Returns, or fails, and leaves a process behind: a plain one, and one that has gone its own way."""
    plain = subprocess.Popen(["sleep", "3600"])
    command = "sleep 3600 >/dev/null 2>&1 & echo $!"
    shell = subprocess.run(
        ["setsid", "sh", "-c", command], stdout=subprocess.PIPE, text=True, check=True
    )
    pids = [plain.pid, int(shell.stdout)]
    plain.returncode = 0  # nobody will ask for it again: no warning either
    (Path(here().work_root or ".") / "left").write_text(json.dumps(pids))
    if how == "fail":
        raise ValueError("and leaves them running")
    return pids


@body()
def daemonise_and_hang() -> None:
    """Starts a process in a session of its own, which starts another and leaves it to whoever takes it."""
    command = "sleep 3600 & echo $!; exec sleep 3600"
    shell = subprocess.Popen(
        ["setsid", "sh", "-c", f"setsid sh -c '{command}' & wait"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout is not None
    pids = [shell.pid, int(shell.stdout.readline())]
    (Path(here().work_root or ".") / "daemons").write_text(json.dumps(pids))
    leave_a_file()
    while True:
        time.sleep(1)


@body()
def fork_and_hang() -> None:
    """A fork in Python, which inherits handlers."""
    pid = os.fork()
    if pid == 0:
        while True:
            time.sleep(0.01)
    (here().workdir / "grandchild").write_text(str(pid))
    while True:
        time.sleep(1)


def _sockets() -> list[int]:
    """Descriptors of this process that are sockets, also where there is no /proc."""
    found: list[int] = []
    for name in os.listdir("/dev/fd"):  # noqa: PTH208
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(int(name))
    return found


@body()
def close_the_line() -> None:
    for each in _sockets():
        os.close(each)
    time.sleep(3600)


@body()
def fork_and_die() -> None:
    """Its fork keeps the line to the worker open; the child itself is killed."""
    pid = os.fork()
    if pid == 0:
        time.sleep(3600)
        os._exit(0)
    # Beside the work directory, which goes with the attempt.
    (Path(here().work_root or ".") / "fork").write_text(str(pid))
    os.kill(os.getpid(), signal.SIGKILL)


@body()
def pid() -> int:
    return os.getpid()


@body()
def open_fds() -> list[str]:
    """Which file each descriptor stands for, by device and number."""
    found: list[str] = []
    for name in os.listdir("/dev/fd"):  # noqa: PTH208
        with suppress(OSError):
            state = os.fstat(int(name))
            found.append(f"{state.st_dev}:{state.st_ino}")
    return found


@body()
def hold_the_lock() -> None:
    """No other thread of the process gets to run: as in an extension that never lets go."""
    leave_a_file()
    ctypes.PyDLL(None).sleep(3600)


@body()
def scribble() -> None:
    """Writes nonsense on every descriptor that is a socket."""
    for each in _sockets():
        with suppress(OSError):
            os.write(each, b"\xff" * 64)
    time.sleep(3600)


@body()
def print_something() -> None:
    print("from the body")  # noqa: T201


@body()
def grow(size: int) -> str:
    return "y" * size


@body()
def length(text: str) -> int:
    return len(text)


@body()
def leave_something(what: str) -> int:
    """Leaves in its process what would be the next body's; returns its pid."""
    leave_a_file()
    match what:
        case "alarm":
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        case "handler":
            signal.signal(signal.SIGUSR1, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "folder":
            os.chdir(here().workdir)
        case "variable":
            os.environ["LEFT_BY_A_BODY"] = "1"
            del os.environ["PATH"]
        case "thread that ends":
            threading.Thread(target=time.sleep, args=(0.01,)).start()
        case _:
            daemon = what == "daemon thread"
            threading.Thread(target=time.sleep, args=(3600,), daemon=daemon).start()
    return os.getpid()


@body()
def look_around(seconds: float) -> list[Any]:
    time.sleep(seconds)
    return [
        os.getpid(),
        str(Path.cwd()),
        sorted(os.environ),
        [str(signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGTERM)],
        threading.active_count(),
    ]
