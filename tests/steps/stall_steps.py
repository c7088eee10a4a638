"""Bodies that keep the interpreter's lock, as a C extension or a regular expression can."""

from __future__ import annotations

import ctypes
import fcntl
import os

from locktender import flow, step
from locktender.testing import recording

_C = ctypes.PyDLL(None)  # unlike CDLL it keeps the interpreter's lock during a call


@step(pool="gil", executor="thread", max_abandons=1)
def keep_lock(fifo: str, locks: list[str]) -> str:
    """No other thread of the process runs until the test writes into `fifo`.

    `locks`: of a SQLite file, for its writers. While this process stands inside a write nobody
    could write: it must not, so both are taken, and released without the interpreter's.
    """
    line = os.open(fifo, os.O_RDWR)
    files = [os.open(each, os.O_RDWR) for each in locks]
    into = ctypes.create_string_buffer(1)
    with recording("gil"):
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX)
        for file in reversed(files):
            _C.flock(file, fcntl.LOCK_UN)
        _C.read(line, into, 1)
    for file in (line, *files):
        os.close(file)
    return "kept"


@step(pool="gil", executor="thread")
def next_one() -> str:
    with recording("gil"):
        return "next"


@flow
def keeping(fifo: str, locks: list[str]) -> str:
    return keep_lock(fifo, locks)


@flow
def following() -> str:
    return next_one()
