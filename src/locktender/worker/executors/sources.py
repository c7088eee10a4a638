"""Where a step's code is, so that another process can import it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from locktender.base.errors import InvalidInput
from locktender.flows.registry import importing
from locktender.worker.executors.guard import MARK

MAIN_ALIAS = "__mp_main__"
"""The name a script runs under in a child: `if __name__ == "__main__":` must not start it again.
multiprocessing uses the same, and libraries that look for it treat both alike."""

MAX_NESTED = 3
"""Engines within process steps of engines."""


class CodeSource(msgspec.Struct, frozen=True, array_like=True):
    """A module by name, a file, or both: the file counts where the name leads elsewhere."""

    module: str
    path: str | None = None
    main: bool = False
    """It was the script that was started."""


def source_of(fn: Callable[..., Any]) -> CodeSource:
    """Where `fn` was defined."""
    name: str = getattr(fn, "__module__", None) or "__main__"
    module = sys.modules.get(name)
    file: str | None = getattr(module, "__file__", None)
    # What is read from standard input has a file of that name, which is nowhere.
    path = None if file is None or file == "<stdin>" else os.path.abspath(file)  # noqa: PTH100
    if name != "__main__":
        return CodeSource(name, path)
    # `python -m package.module`: relative imports work only if it is run by that name again.
    spec = getattr(module, "__spec__", None)
    if path is None and spec is None:
        raise InvalidInput(
            f"the step {getattr(fn, '__qualname__', fn)!s} was defined in no file,"
            " so no other process can import it.",
            field="executor",
            got="process",
            hint="Put it in a file, or use executor='thread'.",
        )
    return CodeSource("" if spec is None else spec.name, path, main=True)


def guarded(source: CodeSource) -> bool:
    """Whether the script defines functions where only running it comes, not importing it."""
    if not source.main or source.path is None:
        return False
    try:
        tree = ast.parse(Path(source.path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    guards = [each for each in tree.body if isinstance(each, ast.If) and _asks_name(each.test)]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(each, functions) for guard in guards for each in ast.walk(guard))


def _asks_name(test: ast.expr) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "__name__" for each in ast.walk(test))


def load(source: CodeSource) -> ModuleType:
    """Import it, once."""
    with importing(source.path or source.module):
        return _load(source)


def _load(source: CodeSource) -> ModuleType:
    if source.main:
        return sys.modules.get(MAIN_ALIAS) or _load_main(source)
    found = sys.modules.get(source.module)
    if found is not None and _same_file(getattr(found, "__file__", None), source.path):
        return found
    if source.path is None or _leads_to(source.module, source.path):
        return importlib.import_module(source.module)
    return _load_file(source.module, source.path)


def _load_main(source: CodeSource) -> ModuleType:
    if not source.module and source.path is not None:
        module = _load_file(MAIN_ALIAS, source.path)
    else:
        module = ModuleType(MAIN_ALIAS)
        sys.modules[MAIN_ALIAS] = module
        try:
            names = runpy.run_module(source.module, run_name=MAIN_ALIAS, alter_sys=True)
        except BaseException:
            del sys.modules[MAIN_ALIAS]
            raise
        module.__dict__.update(names)
        sys.modules[MAIN_ALIAS] = module
    sys.modules["__main__"] = module
    return module


def _load_file(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported as a Python module", path=path)
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    # Registered before it runs: annotations are looked up there while it is still being run.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return module


def _leads_to(module: str, path: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and _same_file(spec.origin, path)


def _same_file(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return other is None
    return os.path.realpath(one) == os.path.realpath(other)


def refuse_too_deep() -> None:
    """Raises where an engine would start within children within children: a script that starts itself again."""
    depth = os.environ.get(MARK, "").count("/")
    if depth >= MAX_NESTED:
        raise InvalidInput(
            f"this is a process step of a process step, {depth} deep: no further engine starts here.",
            field="executor",
            got="process",
            hint="Put what the script does under: if __name__ == '__main__':",
        )
