"""FILE.py:flow, FILE.py or package.module:flow as a flow; of an import error, the user's part of the traceback."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, cast

from locktender.base.errors import InvalidInput, LocktenderError, NotFound
from locktender.base.names import did_you_mean
from locktender.cli.errors import UserCode
from locktender.flows.flows import Flow
from locktender.flows.registry import importing
from locktender.flows.steps import Step

_OURS = str(Path(__file__).parent.parent)


def load_file(path: Path) -> ModuleType:
    """The module a script of this file would be, under its stem: as steps are named by workers elsewhere."""
    check_file(path)
    name = path.stem
    folder = str(path.parent.absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python FILE.py` does, for its siblings
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if spec is None or spec.loader is None:
        raise UserCode(
            f"{path} is not a Python file.", field="file", got=str(path), hint="Name a .py file."
        )
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # annotations are looked up there while it is still being run
    try:
        with importing(str(path)):
            spec.loader.exec_module(module)
    except BaseException as error:
        if before is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = before
        raise _users_fault(error, str(path)) from error
    return module


def check_file(path: Path) -> None:
    """Refuses a file that no process could load under its stem, without running it."""
    if not path.is_file():
        raise _no_file(path)
    _refuse_shadowing(path.stem, path)


def check_module(name: str) -> None:
    """Refuses a module of which not even the top is there. Nothing is run: a parent package would be."""
    top = name.partition(".")[0]
    spec = importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    if spec is None:
        raise _no_module(name)
    if name == top:
        _refuse_folder(spec)


def load_module(name: str) -> ModuleType:
    """A module by its dotted name, from the working directory or wherever Python finds it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        spec = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        spec = None
    except BaseException as error:  # a parent package is run to find its parts
        raise _users_fault(error, name) from error
    if spec is None:
        raise _no_module(name)
    _refuse_folder(spec)
    try:
        with importing(name):
            return importlib.import_module(name)
    except BaseException as error:
        raise _users_fault(error, name) from error


def _refuse_folder(spec: importlib.machinery.ModuleSpec) -> None:
    """A folder without `__init__.py` can be imported, and nothing is defined by that."""
    if spec.origin is None and spec.submodule_search_locations is not None:
        raise _no_file(Path(*spec.name.split(".")))


def _no_module(name: str) -> NotFound:
    return NotFound(
        f"there is no module {name!r}.",
        field="flow",
        got=name,
        hint="Name a file (flows.py:build) or a module that Python can import (shop.flows:build).",
    )


def _no_file(path: Path) -> NotFound:
    if path.is_dir():
        return NotFound(
            f"{path} is a directory.", field="file", got=str(path), hint="Name a .py file in it."
        )
    folder = path.parent
    near = [each.name for each in folder.glob("*.py")] if folder.is_dir() else []
    close = did_you_mean(path.name, near)
    hint = close or "No .py file is there; check the path."
    return NotFound(f"there is no file {path}.", field="file", got=str(path), hint=hint)


def _refuse_shadowing(name: str, path: Path) -> None:
    """A file named like a module of Python would take its place in the whole process."""
    known = sys.modules.get(name)
    file: str | None = getattr(known, "__file__", None)
    same = file is not None and Path(file).resolve() == path.resolve()
    if name in sys.stdlib_module_names or name == "locktender" or (known is not None and not same):
        raise UserCode(
            f"{path.name} hides the module {name!r} that is in use.",
            field="file",
            got=str(path),
            hint=f"Rename the file, e.g. {name}_flow.py.",
        )


def _users_fault(error: BaseException, what: str) -> BaseException:
    """`error` as the user should see it; an interrupt stays one."""
    if isinstance(error, KeyboardInterrupt):
        return error
    if isinstance(error, LocktenderError):
        # A definition that cannot work says so itself; the line it is on is what helps.
        return UserCode(
            f"{_place(error)}{error.message}", field=error.field, got=error.got, hint=error.hint
        )
    if isinstance(error, SystemExit):
        return UserCode(
            f"{what} ended the program while it was imported.",
            trace=users_trace(error),
            field="file",
            hint='Put what runs it behind: if __name__ == "__main__":',
        )
    hint = "Fix the error above; nothing was started."
    if isinstance(error, ImportError) and "relative import" in str(error):
        hint = "It is part of a package: name it as package.module:flow."
    return UserCode(
        f"{what} does not import: {type(error).__name__}: {error}",
        trace=users_trace(error),
        field="file",
        hint=hint,
    )


def users_trace(error: BaseException) -> str:
    """The traceback without our frames and the import machinery's."""
    kept = _users_frames(error.__traceback__)
    if isinstance(error, SyntaxError):
        kept = None  # the file never ran: its place is in the error itself
    shown = traceback.TracebackException(type(error), error, kept)
    return "".join(shown.format(chain=False))


def _users_frames(trace: TracebackType | None) -> TracebackType | None:
    """From the first frame that is neither ours nor the import machinery's on."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((_OURS, "<frozen importlib")):
            return trace
        trace = trace.tb_next
    return None


def _place(error: BaseException) -> str:
    """`flows.py:12: ` of the innermost line that is the user's."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((_OURS, "<frozen")):
            place = f"{file}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return place


AnyFlow = Flow[..., Any]


class Target(NamedTuple):
    where: str
    flow: str
    """'': the only one there is."""

    @property
    def is_file(self) -> bool:
        """A folder is none: `shop` may be a package of that name. What is no module's name can only be a file."""
        is_name = all(part.isidentifier() for part in self.where.split("."))
        return self.where.endswith(".py") or not is_name or Path(self.where).is_file()


def parse(text: str) -> Target:
    where, colon, flow = text.rpartition(":")
    if not colon:
        where, flow = text, ""
    if not where:
        raise InvalidInput(
            "this names no flow.", field="flow", got=text, hint="Write FILE.py:flow."
        )
    return Target(where, flow)


def load(text: str) -> AnyFlow:
    """The flow that `text` names, its file imported."""
    target = parse(text)
    return find(load_source(target), target)


def load_source(target: Target) -> ModuleType:
    return load_file(Path(target.where)) if target.is_file else load_module(target.where)


def load_app(name: str) -> ModuleType:
    """What `--app` names: a module, also where a file or a folder of that name lies here."""
    if name.endswith(".py") or "/" in name:
        raise InvalidInput(
            "--app takes a module, and this is a file.",
            field="app",
            got=name,
            hint=f"Name it without --app: locktender worker {name}",
        )
    return load_module(name)


def flows_of(module: ModuleType) -> dict[str, AnyFlow]:
    """Flows by the names they have in the module."""
    found = {
        name: cast("AnyFlow", value)
        for name, value in vars(module).items()
        if isinstance(value, Flow)
    }
    own = {name: flow for name, flow in found.items() if flow.definition.module == module.__name__}
    return own or found


def find(module: ModuleType, target: Target) -> AnyFlow:
    flows = flows_of(module)
    if not target.flow:
        return _only(flows, target)
    value: object = getattr(module, target.flow, None)
    if isinstance(value, Flow):
        return cast("AnyFlow", value)
    for flow in flows.values():
        if target.flow in {flow.name, flow.definition.short}:
            return flow
    if isinstance(value, Step):
        raise UserCode(
            f"{target.flow!r} in {target.where} is a step; only flows can be run.",
            field="flow",
            got=target.flow,
            hint="Call it inside a function decorated with @flow, and run that.",
        )
    if callable(value):
        raise UserCode(
            f"{target.flow!r} in {target.where} is a plain function.",
            field="flow",
            got=target.flow,
            hint="Decorate it with @flow.",
        )
    raise NotFound(
        f"there is no flow {target.flow!r} in {target.where}.",
        field="flow",
        got=target.flow,
        hint=did_you_mean(target.flow, flows) or "It has none: decorate a function with @flow.",
    )


def _only(flows: dict[str, AnyFlow], target: Target) -> AnyFlow:
    several = {flow.name: name for name, flow in flows.items()}
    if len(several) == 1:
        return next(iter(flows.values()))
    if not several:
        raise UserCode(
            f"{target.where} defines no flow.",
            field="flow",
            got=target.where,
            hint="Decorate a function with @flow.",
        )
    names = ", ".join(f"{target.where}:{name}" for name in sorted(several.values()))
    raise InvalidInput(
        f"{target.where} defines {len(several)} flows.", field="flow", hint=f"Say which: {names}."
    )
