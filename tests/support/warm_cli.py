"""A process that has loaded the program and forks for each command: `python warm_cli.py SOCKET`.

A command runs in a process of its own, in its own folder and environment, as the
executable does; only the start of Python and the loading of modules is paid once.
It ends with whoever started it: by the end of its standard input.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from typing import Any

MODULES = (
    "asyncpg",
    "locktender.cli.main",
    "locktender.client.client",
    "locktender.client.core",
    "locktender.client.open",
    "locktender.observe.checker",
    "locktender.engine",
    "locktender.store.postgres",
    "locktender.store.sqlite.store",
    "rich.console",
    "rich.table",
    "typer.main",
)


def load() -> None:
    for name in MODULES:
        __import__(name)


def carry_out(asked: dict[str, Any]) -> int:
    """In a fork: from here on this process is the command."""
    os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.path[0] = asked["cwd"]
    sys.argv = ["locktender", *asked["arguments"]]
    for fd, path in ((0, os.devnull), (1, asked["out"]), (2, asked["err"])):
        opened = os.open(
            path, os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
        )
        os.dup2(opened, fd)
        os.close(opened)
    from locktender.cli.main import main

    try:
        code = main(asked["arguments"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def answer(connection: socket.socket) -> None:
    with connection, connection.makefile("rw") as line:
        asked = json.loads(line.readline())
        command = os.fork()
        if command == 0:
            connection.close()
            code = 1
            try:
                code = carry_out(asked)
            finally:
                os._exit(code)
        line.write(f"{command}\n")
        line.flush()
        _, status = os.waitpid(command, 0)
        line.write(f"{os.waitstatus_to_exitcode(status)}\n")
        line.flush()


def main(path: str) -> None:
    load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(16)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                try:
                    answer(connection)
                finally:
                    os._exit(0)
            connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
