"""The checker's state as bytes: what a later audit needs to go on where an earlier one ended.

Everything that the state and the rules keep is stored, whatever it is made of:
a rule that keeps something new needs no code here, unless it is of a class
that is not listed below. Plans are stored as the names of their graphs.

The bytes are of one version of the checker: another one cannot read them, and
starts from the beginning of the history. No class is named but those below, so
what is read cannot run code.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, cast

import msgspec

from locktender.base.events import Event
from locktender.base.limits import Fair, Limits, PoolRule, Rate, TagRule
from locktender.base.version import installed
from locktender.observe.checker.admission import Doubt
from locktender.observe.checker.bypass import WaitingGroup, WaitingLines
from locktender.observe.checker.history import GraphPlan, Rejection, Violation
from locktender.observe.checker.limits_in_force import InForce
from locktender.observe.checker.state import (
    CheckedRun,
    CheckedTask,
    CheckedWorker,
    HistoryCommit,
    Released,
    SeenRuns,
    UseCount,
)

FORMAT: Final = 3
"""To be raised with every change of what the checker's state means."""

_OBJECTS: Final[dict[str, type[Any]]] = {
    each.__name__: each
    for each in (
        *(CheckedRun, CheckedTask, CheckedWorker, UseCount, InForce, SeenRuns),
        *(WaitingGroup, WaitingLines),
    )
}
"""They change, and refer to each other."""
_VALUES: Final[dict[str, type[Any]]] = {
    each.__name__: each
    for each in (
        *(Event, HistoryCommit, Released, Violation, Rejection, Doubt),
        *(Limits, PoolRule, TagRule, Fair, Rate),
    )
}
"""They never change."""
_SCALARS: Final = frozenset({str, bool, float, type(None)})
_LARGEST: Final = 2**63
_PLAN: Final = "plan"


class StateUnreadable(ValueError):
    """The state is damaged, or of another version of the checker."""


def version() -> str:
    """Which checker can read the state."""
    layout = [(name, _names(kind)) for name, kind in (*_OBJECTS.items(), *_VALUES.items())]
    return f"{FORMAT}.{zlib.crc32(repr(layout).encode()):08x}.{installed()}"


@dataclass(frozen=True, slots=True)
class SavedState:
    """What was stored, before plans are found for it."""

    graphs: list[str]
    """Content hashes of the graphs that it refers to."""
    parts: dict[str, Any]


def encode(parts: Mapping[str, object]) -> bytes:
    writer = _Writer()
    body = {name: writer.put(value) for name, value in parts.items()}
    return zlib.compress(msgspec.msgpack.encode([sorted(writer.graphs), body]), 1)


def read(body: bytes) -> SavedState:
    try:
        graphs, parts = msgspec.msgpack.decode(
            zlib.decompress(body), type=tuple[list[str], dict[str, Any]]
        )
    except (zlib.error, msgspec.MsgspecError) as error:
        raise StateUnreadable(str(error)) from error
    return SavedState(graphs, parts)


def decode(saved: SavedState, plan: Callable[[str], GraphPlan | None]) -> dict[str, Any]:
    """The parts as they were; `plan` finds the plan of a graph by its content hash."""
    reader = _Reader(plan)
    try:
        found = {name: reader.get(value) for name, value in saved.parts.items()}
        reader.join_plans()
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StateUnreadable(repr(error)) from error
    return found


def _names(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a listed class; of one with attributes of any name: none."""
    if is_dataclass(kind):
        return tuple(each.name for each in fields(kind))
    if (named := getattr(kind, "_fields", None)) is not None:
        return named
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return tuple(cast("Iterable[str]", getattr(kind, "__slots__", ())))


_FIELDS: Final[dict[type[Any], tuple[str, ...]]] = {
    kind: _names(kind) for kind in (*_OBJECTS.values(), *_VALUES.values())
}
_CHANGING: Final = frozenset(_OBJECTS.values())


class _Writer:
    def __init__(self) -> None:
        self.graphs: set[str] = set()
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []

    def put(self, value: Any) -> Any:
        kind = cast("type[Any]", type(value))
        if kind in _SCALARS:
            return value
        if kind is int:
            return value if -_LARGEST <= value < _LARGEST else ["n", f"{value:x}"]
        if kind is dict:
            return ["d", *(self.put(each) for pair in value.items() for each in pair)]
        if kind is list:
            return ["l", *map(self.put, value)]
        if kind is tuple:
            return ["t", *map(self.put, value)]
        if kind is set:
            return ["s", *map(self.put, value)]
        if kind is frozenset:
            return ["f", *map(self.put, value)]
        if kind is deque:
            return ["q", value.maxlen, *map(self.put, value)]
        if isinstance(value, str):  # a state's name
            return str(value)
        return self._listed(value, kind)

    def _listed(self, value: Any, kind: type[Any]) -> Any:
        # Two records are one where the state says so: what was given back is told apart by identity.
        number = self._numbers.get(id(value))
        if number is not None:
            return ["r", number]
        names = _FIELDS.get(kind)
        if names is None:
            raise TypeError(f"the state holds a {kind.__name__}, which is not listed")
        if not names:
            names = tuple(cast("dict[str, Any]", vars(value)))
        number = self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)
        body: list[Any] = []
        for name in names:
            field = getattr(value, name)
            body.append(self._plan(value) if name == _PLAN else self.put(field))
        if kind not in _CHANGING:
            return ["v", kind.__name__, number, *body]
        return ["o", kind.__name__, number, *([] if _FIELDS[kind] else [list(names)]), *body]

    def _plan(self, owner: CheckedRun | CheckedTask | WaitingGroup) -> Any:
        """Of a run the graph's name, of what belongs to a run the node's number."""
        if owner.plan is None:
            return None
        if not isinstance(owner, CheckedRun):
            return cast("Any", owner.plan).index
        digest = owner.data["graph"]
        self.graphs.add(digest)
        return digest


class _Reader:
    def __init__(self, plan: Callable[[str], GraphPlan | None]) -> None:
        self._plan_of = plan
        self._known: dict[int, Any] = {}
        self._in_runs: list[CheckedTask | WaitingGroup] = []

    def get(self, value: Any) -> Any:
        if type(value) is not list:
            return value
        stored = cast("list[Any]", value)
        kind, rest = stored[0], stored[1:]
        match kind:
            case "d":
                each = map(self.get, rest)
                return dict(zip(each, each, strict=True))
            case "l":
                return [self.get(each) for each in rest]
            case "t":
                return tuple(self.get(each) for each in rest)
            case "s":
                return {self.get(each) for each in rest}
            case "f":
                return frozenset(self.get(each) for each in rest)
            case "q":
                return deque((self.get(each) for each in rest[1:]), maxlen=rest[0])
            case "n":
                return int(rest[0], 16)
            case "r":
                return self._known[rest[0]]
            case "v":
                value = _VALUES[rest[0]](*(self.get(each) for each in rest[2:]))
                self._known[rest[1]] = value
                return value
            case "o":
                return self._object(_OBJECTS[rest[0]], rest[1], rest[2:])
            case _:
                raise ValueError(f"unknown kind {kind!r}")

    def _object(self, kind: type[Any], number: int, body: list[Any]) -> Any:
        made: Any = object.__new__(kind)
        self._known[number] = made
        names = _FIELDS[kind]
        if not names:
            names, body = tuple(body[0]), body[1:]
        for name, stored in zip(names, body, strict=True):
            setattr(made, name, stored if name == _PLAN else self.get(stored))
        if kind is CheckedRun and made.plan is not None:
            made.plan = self._plan_of(made.plan)
            if made.plan is None:
                raise ValueError(f"run {made.id} has no graph")
        elif kind is InForce:
            # One mapping for both: see `InForce.start_term`.
            made.limits = msgspec.structs.replace(made.limits, pools=made.pools)
        elif kind is CheckedTask or kind is WaitingGroup:
            self._in_runs.append(made)
        return made

    def join_plans(self) -> None:
        """Tasks are read before their run is whole."""
        for each in self._in_runs:
            index = cast("int | None", each.plan)
            if index is not None:
                each.plan = cast("GraphPlan", each.run.plan).nodes[index]
