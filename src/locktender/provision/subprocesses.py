"""Runs an operator's command: bounded in time and in output, ended with all that it started.

A command that exits well may leave processes behind (`ssh -f`, a wrapper of a batch
system): they are left alone, and are not waited for although they keep its output open.
A command that times out, or whose caller is cancelled, is killed with its descendants.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil

from locktender.base.errors import LocktenderError

MAX_OUTPUT_BYTES = 4 << 20
MAX_ERROR_BYTES = 8 << 10
OUTPUT_SECONDS = 1.0
"""How long output is read after the command has exited: a process that it left may keep it open."""
REAP_SECONDS = 2.0
"""How long a killed command may take to be gone."""
KILL_ROUNDS = 20


class CommandFailed(LocktenderError):
    code = "command_failed"


class CommandOutput(NamedTuple):
    code: int
    out: bytes
    """Its beginning."""
    error: bytes
    """The end of its error output."""
    cut: bool
    """Its output was longer."""


async def run_command(
    words: Sequence[str], environment: Mapping[str, str], timeout_seconds: float
) -> CommandOutput:
    """Raises TimeoutError when the command was killed for its time, OSError when it did not start."""
    loop = asyncio.get_running_loop()
    transport, command = await loop.subprocess_exec(
        _Command,
        *words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            await command.exited.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(OUTPUT_SECONDS):
                await command.drained.wait()
    except BaseException:
        if not command.exited.is_set():
            kill_tree(transport.get_pid())
            with suppress(TimeoutError):
                async with asyncio.timeout(REAP_SECONDS):
                    await command.exited.wait()
        raise
    finally:
        transport.close()
    code = transport.get_returncode()
    return CommandOutput(
        -1 if code is None else code, bytes(command.out), bytes(command.error), command.cut
    )


def kill_tree(pid: int) -> None:
    """Kills a process, its group and all descendants, also those in sessions of their own.

    Each is stopped before its children are listed, so that it cannot start another meanwhile.
    """
    found: dict[int, psutil.Process] = {}
    with suppress(psutil.Error):
        found[pid] = psutil.Process(pid)
    for _ in range(KILL_ROUNDS):
        new: dict[int, psutil.Process] = {}
        for process in list(found.values()):
            with suppress(psutil.Error):
                process.suspend()
                new |= {each.pid: each for each in process.children(recursive=True)}
        if new.keys() <= found.keys():
            break
        found |= new
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for process in found.values():
        with suppress(psutil.Error):
            process.kill()


class _Command(asyncio.SubprocessProtocol):
    """Reads to the end and keeps a bounded part, so that a command never blocks on its output."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.error = bytearray()
        self.cut = False
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        self._open = 2

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self.cut = self.cut or len(self.out) + len(data) > MAX_OUTPUT_BYTES
            self.out += data[: MAX_OUTPUT_BYTES - len(self.out)]
        else:
            self.error += data
            del self.error[:-MAX_ERROR_BYTES]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        self._open -= 1
        if not self._open:
            self.drained.set()

    def process_exited(self) -> None:
        self.exited.set()
