"""The real `locktender` program in processes of its own, for the tests of the command line."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

PROGRAM = [sys.executable, "-m", "locktender.cli.main"]
PATIENCE = 60.0
T = TypeVar("T")

FLOWS = '''
import asyncio
import time
from pathlib import Path

from locktender import flow, step


@step(pool="db")
async def fetch(x: int) -> int:
    await asyncio.sleep(0.05)
    return x


@step
def add(xs: list[int]) -> int:
    return sum(xs)


@step
async def nap(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@step
async def hold(until: str) -> str:
    """Runs until a file is there."""
    while not Path(until).exists():
        await asyncio.sleep(0.01)
    return "held"


@step(pool="db")
async def hold_db(until: str) -> str:
    while not Path(until).exists():
        await asyncio.sleep(0.01)
    return "held"


@step
def divide(x: int) -> float:
    return 1 / x


@step
def secret() -> object:
    return object()


@step
def large() -> str:
    return "x" * 3_000_000


@step(pools={"db": 5})
def greedy() -> int:
    return 1


@flow
def build(n: int = 4, label: str = "none"):
    return add(fetch.map(range(n), window=3))


@flow
def sleepy(seconds: float = 60):
    return nap(seconds)


@flow
def holding(until: str):
    return hold(until)


@flow
def holding_db(until: str, items: int = 3):
    return hold_db.map([until] * items)


@step
def counted(held: list[str]) -> int:
    return len(held)


@flow
def drawn(until: str):
    """Three that wait for a file, two of them at a time, and one behind them."""
    return counted(hold_db.map([until] * 3))


@flow
def failing():
    return divide(0)


@flow
def untraceable():
    wanted = {}
    return add(wanted["missing"])


@flow
def miscalled():
    return add(1, 2, 3)


@flow
def windowless():
    return fetch.map([1], window=0)


@flow
def hidden():
    return secret()


@flow
def huge():
    return large()


@flow
def needs_five():
    return greedy()
'''


class CommandResult(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err)


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKTENDER_")}
    return {**kept, "COLUMNS": "80", "PYTHONDONTWRITEBYTECODE": "1", "TERM": "dumb"}


def locktender(*arguments: str, cwd: Path, timeout: float = PATIENCE, **env: str) -> CommandResult:
    """What a command answers, in a process of its own that was forked from one that is warm."""
    with tempfile.TemporaryDirectory(prefix="locktender-said-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        asked = {
            "arguments": arguments,
            "cwd": str(cwd),
            "env": {**environment(), **env},
            "out": str(out),
            "err": str(err),
        }
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(warm_process())
            with connection.makefile("rw") as line:
                line.write(json.dumps(asked) + "\n")
                line.flush()
                pid = int(line.readline())
                try:
                    code = int(line.readline())
                except TimeoutError:
                    os.killpg(pid, signal.SIGKILL)
                    raise AssertionError(f"{arguments} took more than {timeout} s") from None
        return CommandResult(code, out.read_text(), err.read_text())


@cache
def warm_process() -> str:
    """Where it listens. It ends with this process, whose end it sees."""
    path = f"{tempfile.mkdtemp(prefix='locktender-warm-')}/socket"
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("warm_cli.py")), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    atexit.register(_end, process, Path(path).parent)
    return path


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.communicate()
    shutil.rmtree(folder, ignore_errors=True)


def executable(*arguments: str, cwd: Path, timeout: float = PATIENCE, **env: str) -> CommandResult:
    """As `locktender`, by the real program from its first line on: once for each command."""
    done = subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd,
        env={**environment(), **env},
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


_BATCH = """
import contextlib, io, json, sys
from locktender.cli.main import main

answers = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    answers.append([code, out.getvalue(), err.getvalue()])
json.dump(answers, sys.stdout)
"""


def batch(commands: dict[str, list[str]], cwd: Path) -> dict[str, CommandResult]:
    """Many command lines, one after the other, in one process."""
    done = subprocess.run(
        [sys.executable, "-c", _BATCH],
        cwd=cwd,
        env=environment(),
        input=json.dumps(list(commands.values())),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return {
        name: CommandResult(*answer)
        for name, answer in zip(commands, json.loads(done.stdout), strict=True)
    }


def all_of(commands: dict[str, list[str]], cwd: Path) -> dict[str, CommandResult]:
    """Several commands beside each other, each in a process of its own."""
    with ThreadPoolExecutor(4) as several:
        said = several.map(lambda each: locktender(*each, cwd=cwd), commands.values())
        return dict(zip(commands, said, strict=True))


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on; it leads a process group of its own and is gone at the end."""
    output = (cwd / f"out-{time.monotonic_ns()}.txt").open("w+")
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=cwd,
        env=environment(),
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    process.path = Path(output.name)  # type: ignore[attr-defined]
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.close()


def output_of(process: subprocess.Popen[str]) -> str:
    path: Path = process.path  # type: ignore[attr-defined]
    return path.read_text()


def interrupt(process: subprocess.Popen[str]) -> None:
    """As a terminal does: the whole group hears it."""
    os.killpg(process.pid, signal.SIGINT)


def until(ready: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """`ready`'s first answer that is one, within bounds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if answer := ready():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"waited {patience} s for {what}, in vain")
