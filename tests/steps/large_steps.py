"""Steps whose values are large, and steps that hand files on."""

from __future__ import annotations

import time
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile

from locktender import StoredFile, flow, step


@step(executor="thread")
def make(n: int) -> str:
    return "x" * n


@step(executor="thread")
def length(text: str) -> int:
    return len(text)


@step(executor="thread")
def wait(n: int, latch: str) -> int:
    while latch and not Path(latch).exists():
        time.sleep(0.01)
    return n


@flow
def large(n: int, latch: str = "") -> int:
    return counted(make(n), wait(1, latch))


@step(executor="thread")
def counted(text: str, one: int) -> int:
    return len(text) * one


@flow
def whole(n: int) -> str:
    return make(n)


@step(executor="process")
def write_file(n: int) -> StoredFile:
    with NamedTemporaryFile() as file:
        file.write(b"abc" * n)
        file.flush()
        return StoredFile.store(file.name)


@step(executor="thread")
def twice(source: StoredFile) -> StoredFile:
    with source.open() as file:
        return StoredFile.store(BytesIO(file.read() * 2))


@flow
def files(n: int) -> StoredFile:
    return twice(write_file(n))


@flow
def whole_of(text: str) -> int:
    return length(text)
