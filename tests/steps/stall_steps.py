"""Bodies that keep the interpreter's lock, as a C extension or a regular expression can."""

from __future__ import annotations

import ctypes
import os

from locktender import flow, step
from locktender.testing import recording

_C = ctypes.PyDLL(None)  # unlike CDLL it keeps the interpreter's lock during a call


@step(pool="gil", executor="thread", max_abandons=1)
def keep_lock(fifo: str) -> str:
    """No other thread of the process runs until the test writes into `fifo`."""
    line = os.open(fifo, os.O_RDWR)
    with recording("gil"):
        _C.read(line, ctypes.create_string_buffer(1), 1)
    os.close(line)
    return "kept"


@step(pool="gil", executor="thread")
def next_one() -> str:
    with recording("gil"):
        return "next"


@flow
def keeping(fifo: str) -> str:
    return keep_lock(fifo)


@flow
def following() -> str:
    return next_one()
