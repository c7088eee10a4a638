"""Descriptors that a forked child must not keep: locks and connections that say this process lives.

A child made by `fork` (multiprocessing, on Linux before Python 3.14) has a copy of every descriptor. A lock is
free, and a connection closed, only when the last copy is closed: a child that lives on would keep the write lock
or the proof of life of a parent that was killed. So a child closes its copies at once. What was opened in the
parent cannot be used there; it is kept as it is, because a finaliser would close numbers that belong to others.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from locktender.base.errors import StoreError


class HasDescriptors(Protocol):
    def descriptors(self) -> Iterable[int]: ...


_open: weakref.WeakSet[HasDescriptors] = weakref.WeakSet()
_kept: list[HasDescriptors] = []


def close_in_children(owner: HasDescriptors) -> None:
    """From here on a forked child closes what `owner` has open then."""
    _open.add(owner)


def _in_child() -> None:
    for owner in list(_open):
        _kept.append(owner)
        for fd in owner.descriptors():
            with suppress(OSError):
                os.close(fd)
    _open.clear()


def check_process(pid: int) -> None:
    """Refuses the use of what another process has opened."""
    if pid != os.getpid():
        raise StoreError(
            "this store was opened before the process forked.",
            hint="Open a store, or connect, in the child itself.",
        )


os.register_at_fork(after_in_child=_in_child)
