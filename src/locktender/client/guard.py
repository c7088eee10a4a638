"""Whether a client may still be used."""

from __future__ import annotations

import os

from locktender.base.errors import LocktenderError


class ClientClosed(LocktenderError):
    """The client was closed; its runs are safe in the store and can be asked for by a new client."""

    code = "client_closed"


class ClientGuard:
    """Whether a client may still be used: not after it was closed, not in a forked child."""

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
                hint="Open one in the child: locktender.connect().",
            )


def closed() -> ClientClosed:
    return ClientClosed(
        "this client is closed.", hint="Open a new one, or do the call inside its with block."
    )
