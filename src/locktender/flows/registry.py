"""Every step and flow of this process, by name: how a worker finds the function a task names."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from locktender.base.errors import InvalidFlow, InvalidInput, NotFound
from locktender.base.names import did_you_mean
from locktender.flows.definitions import FlowDef, StepDef
from locktender.flows.function import Function

F = TypeVar("F", bound=Function)


class Registry:
    """A definition replaces one of the same name from the same file, as a reload does; another file may not."""

    def __init__(self) -> None:
        self.steps: dict[str, StepDef] = {}
        self.flows: dict[str, FlowDef] = {}

    def add_step(self, step: StepDef) -> None:
        _add(self.steps, step)

    def add_flow(self, flow: FlowDef) -> None:
        _add(self.flows, flow)

    def step(self, name: str) -> StepDef:
        return _find(self.steps, name, "step")

    def flow(self, name: str) -> FlowDef:
        return _find(self.flows, name, "flow")


def _add(known: dict[str, F], new: F) -> None:
    old = known.get(new.name)
    if old is not None and not _same_file(old.file, new.file):
        raise InvalidFlow(
            f"two {new.kind}s are named {new.name!r}: one in {old.file}, one in {new.file}.",
            field="name",
            got=new.name,
            hint=f"Give one of them another name: @{new.kind}(name=...).",
        )
    known[new.name] = new


def _same_file(one: str, other: str) -> bool:
    # Every line typed at a prompt is a "file" of its own, all in angle brackets.
    if one.startswith("<") and other.startswith("<"):
        return True
    return one == other or Path(one).resolve() == Path(other).resolve()


def _find(known: Mapping[str, F], name: str, kind: str) -> F:
    if found := known.get(name):
        return found
    raise NotFound(
        f"there is no {kind} {name!r} here.",
        field=kind,
        got=name,
        hint=did_you_mean(name, known) or f"No {kind} is loaded: import the file that defines it.",
    )


registry: Registry = Registry()


_thread = threading.local()


@contextmanager
def importing(source: str) -> Generator[None]:
    """Around the import of `source`, a file or a module, for the steps that are in it.

    A script that does its work outside `if __name__ == "__main__":` does it again wherever it
    is imported. A child that needs a step of it would start an engine, whose children import
    it too, without end: so meanwhile no engine may start and no run be submitted. A client
    may be made: it is often a module's own.
    """
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
