"""FILE.py:flow, FILE.py or package.module:flow as a flow."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from locktender.base.errors import InvalidInput, NotFound
from locktender.base.names import did_you_mean
from locktender.cli.failures import UserCode
from locktender.cli.importing import load_file, load_module
from locktender.flows.flows import Flow
from locktender.flows.steps import Step

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
