"""Whether a client may still be used: not after it was closed, not in a forked child."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any

from headgate.base.errors import HeadgateError


class ClientClosed(HeadgateError):
    """The client was closed; its runs are safe in the store and can be asked for by a new client."""

    code = "client_closed"


class Guard:
    def __init__(self) -> None:
        self._pid = os.getpid()
        self.closed = False

    @property
    def forked(self) -> bool:
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raises where a verb would hang or harm."""
        self.check_process()
        if self.closed:
            raise closed()

    def check_process(self) -> None:
        """Threads, locks and connections do not survive a fork."""
        if self.forked:
            raise ClientClosed(
                f"this client belongs to process {self._pid}; a forked child cannot use it.",
                hint="Open one in the child: headgate.connect().",
            )


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels and waits. Unlike a suppressed `await task`, it does not swallow the caller's own cancellation."""
    several = list(tasks)
    for task in several:
        task.cancel()
    await asyncio.gather(*several, return_exceptions=True)


def closed() -> ClientClosed:
    return ClientClosed(
        "this client is closed.", hint="Open a new one, or do the call inside its with block."
    )
