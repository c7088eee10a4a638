"""Steps of runs that fail, are retried and have steps behind the failure."""

from __future__ import annotations

import asyncio
from pathlib import Path

from locktender import flow, step

LOOK_SECONDS = 0.002


def note(folder: str, name: str) -> None:
    with Path(folder, "ran").open("a", encoding="utf-8") as file:
        file.write(f"{name}\n")


def there(folder: str, name: str) -> bool:
    return Path(folder, name).exists()


def ran(folder: Path) -> list[str]:
    file = folder / "ran"
    return file.read_text(encoding="utf-8").split() if file.exists() else []


@step(pool="tenant")
async def first(folder: str) -> int:
    """Fails until the file `mended` is there; then waits for the file `go`."""
    note(folder, "first")
    if not there(folder, "mended"):
        raise ValueError("not mended yet")
    while not there(folder, "go"):  # noqa: ASYNC110 — the test opens it from another process
        await asyncio.sleep(LOOK_SECONDS)
    return 20


@step(pool="tenant")
async def push(value: int, folder: str) -> int:
    note(folder, "push")
    return value + 1


@step
async def spread(value: int) -> list[int]:
    return [value, value + 1]


@step
async def double(value: int) -> int:
    return 2 * value


@flow
def chain(folder: str) -> int:
    return push(first(folder), folder)


@flow
def mapped(folder: str) -> list[int]:
    return double.map(double.map(spread(first(folder))))


@step
def make_scratch(folder: str) -> str:
    note(folder, "make_scratch")
    Path(folder, "scratch").mkdir()
    return str(Path(folder, "scratch"))


@step
def fill(scratch: str, folder: str) -> str:
    note(folder, "fill")
    Path(scratch, "filled").touch()
    return scratch


@step
def use(scratch: str, folder: str) -> bool:
    note(folder, "use")
    if not there(folder, "mended"):
        raise ValueError("not mended yet")
    return Path(scratch, "filled").exists()


@step
def remove(scratch: str, folder: str) -> None:
    note(folder, "remove")
    Path(scratch, "filled").unlink()
    Path(scratch).rmdir()


@step
async def apart(folder: str) -> int:
    note(folder, "apart")
    return 1


@flow
def with_clean_up(folder: str) -> bool:
    apart(folder)
    scratch = make_scratch(folder)
    used = use(fill(scratch, folder), folder)
    remove.with_options(after=[used], run_if="always")(scratch, folder)
    return used
