"""Where another process finds the steps of this one: what `locktender worker` must be told.

A script is named by its file, as it would be on a command line, and knows its
steps by the same names there. A module is named as it is imported, and where it
lies comes along: the path of this process may not be a new one's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from locktender.flows.definitions import StepDef


class Sources(NamedTuple):
    words: tuple[str, ...]
    """As `locktender worker` takes them."""
    roots: tuple[str, ...]
    """Where modules are looked for, beside where Python looks anyway."""
    steps: frozenset[str]
    """What a worker with these words knows."""
    left_out: dict[str, str]
    """Step → why no other process can know it."""


class _Place(NamedTuple):
    words: tuple[str, ...]
    root: str | None = None


def step_sources(steps: Mapping[str, StepDef]) -> Sources:
    """Where these steps can be loaded from."""
    files: dict[str, None] = {}
    modules: dict[tuple[str, ...], None] = {}
    roots: dict[str, None] = {}
    known: set[str] = set()
    left_out: dict[str, str] = {}
    for name, step in steps.items():
        place = _place(step)
        if isinstance(place, str):
            left_out[name] = place
            continue
        known.add(name)
        if len(place.words) == 1:
            files[place.words[0]] = None
        else:
            modules[place.words] = None
        if place.root is not None and not _found_anyway(place.root):
            roots[place.root] = None
    words = (*files, *(word for several in modules for word in several))
    return Sources(words, tuple(roots), frozenset(known), left_out)


def _place(step: StepDef) -> _Place | str:
    """Where a step is defined; as text, why it cannot be had from there."""
    if step.file.startswith("<"):
        return "it was typed at a prompt and is in no file"
    if step.is_local:
        return "it is defined inside a function, so that importing its file does not define it"
    if step.module == "__main__":
        return _script(step)
    file: str | None = getattr(sys.modules.get(step.module), "__file__", None)
    if file is None:
        return f"its module {step.module} is in no file"
    root = _root(step.module, Path(file).absolute())
    if root is None:
        return f"its module {step.module} is not where its name says, but in {file}"
    return _Place(("--app", step.module), str(root))


def _script(step: StepDef) -> _Place | str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:
        return _Place((str(Path(step.file).absolute()),))
    # `python -m shop.flows`: here its steps are named after its file, where it is imported after all of it.
    if step.name in {f"{spec.name}:{step.qualname}", step.short}:
        root = _root(spec.name, Path(step.file).absolute())
        return _Place(("--app", spec.name), None if root is None else str(root))
    return (
        f"it was run by python -m {spec.name}, and a worker would know it as"
        f" {spec.name}:{step.qualname}; run the file itself, or import the module"
    )


def _root(module: str, path: Path) -> Path | None:
    """The folder from which `module` is imported; None where the file is elsewhere."""
    parts = module.split(".")
    if path.name == "__init__.py":
        path = path.parent
    elif path.name.partition(".")[0] != parts[-1]:
        return None
    parents = [path.name.partition(".")[0], *(parent.name for parent in path.parents)]
    if parents[: len(parts)] != parts[::-1]:
        return None
    return path.parents[len(parts) - 1]


def _found_anyway(root: str) -> bool:
    """A worker looks in its working directory, and in what was installed with the interpreter."""
    if Path(root) == Path.cwd():
        return True
    inside = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    return any(Path(os.path.realpath(root)).is_relative_to(prefix) for prefix in inside)
