"""While user code is imported nobody reads standard input: a thread ends us with whoever started us."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Generator
from contextlib import contextmanager

LOOK_MILLISECONDS = 200


@contextmanager
def gone_with_parent() -> Generator[None]:
    """Ends the process at once if the other end of standard input goes; nothing runs yet."""
    over = threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(0, select.POLLHUP)
        while not over.is_set():
            if any(
                event & (select.POLLHUP | select.POLLERR)
                for _, event in poll.poll(LOOK_MILLISECONDS)
            ):
                if not over.is_set():
                    os._exit(0)
                return

    threading.Thread(target=watch, name="locktender-parent", daemon=True).start()
    try:
        yield
    finally:
        over.set()
