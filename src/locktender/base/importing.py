"""Whether this thread is importing a user's file for the steps that are in it.

A script that does its work outside `if __name__ == "__main__":` does it again wherever it
is imported. A child that needs a step of it would start an engine, whose children import
it too, and so on until the machine stands still: so no engine may start meanwhile, and
no run be submitted. A client may be made: it is often a module's own.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from locktender.base.errors import InvalidInput

_thread = threading.local()


@contextmanager
def importing(source: str) -> Generator[None]:
    """Around the import of `source`, a file or a module."""
    before: str | None = getattr(_thread, "source", None)
    _thread.source = before or source
    try:
        yield
    finally:
        _thread.source = before


def refuse_while_importing(what: str) -> None:
    """Raises where a file that is imported for its steps does `what`."""
    source: str | None = getattr(_thread, "source", None)
    if source is not None:
        raise InvalidInput(
            f"{source} {what} while a worker imports it for its steps.",
            field="file",
            got=source,
            hint="Put what the script does under: if __name__ == '__main__':",
        )
