"""Values given to steps, as templates: parameters by name, results by node, everything else hoisted.

So the graph holds no values, and all runs of a flow that take the same way share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from locktender.base import codec
from locktender.base.errors import InvalidFlow, Unserialisable
from locktender.base.graph import AnyTemplate, Const, DictOf, ListOf, Param
from locktender.base.graph_check import MAX_DEPTH
from locktender.base.names import MAX_ITEMS
from locktender.flows.handles import Handle, Test, output_of

_SCALARS = (str, int, float, bytes, type(None))
_FIXED: frozenset[type] = frozenset({str, int, float, bytes})
"""No value of exactly these types can change while a body runs."""


class Templates:
    """The parameters and constants of one trace."""

    def __init__(self, params: Mapping[str, Any], given: Mapping[str, bytes]) -> None:
        """`params` by name, and each as JSON, as the run stores it."""
        # A parameter is known by being the same object. None, True and False are one object everywhere,
        # so that for them it would say nothing.
        self._params = params
        self._param_of: dict[int, Param] = {}
        self._changeable: dict[int, tuple[Param, bytes]] = {}
        for name, value in params.items():
            if type(value) in _FIXED:
                self._param_of.setdefault(id(value), Param(name))
            elif value is not None and value is not True and value is not False:
                self._changeable.setdefault(id(value), (Param(name), given[name]))
        self._consts: list[bytes] = []
        self._const_of: dict[object, int] = {}
        self._alive: list[object] = []

    def consts(self) -> bytes:
        """JSON array of the values that `Const` points to."""
        return codec.join_list(self._consts)

    def template(self, value: object, where: str) -> AnyTemplate:
        return self._param_of.get(id(value)) or self._template(value, where, 1)

    def items(self, value: object, where: str) -> AnyTemplate:
        """What a step is mapped over: a handle, a parameter, or anything that can be listed."""
        if isinstance(value, Handle):
            return output_of(self, cast("Handle[Any]", value))
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise InvalidFlow(
                f"{where} cannot be mapped over a {type(cast('object', value)).__name__}.",
                field=where,
                got=cast("object", value),
                hint="Give .map() a list; of a dict, list(d.items()).",
            )
        several = cast("Iterable[object]", value)
        listed = several if isinstance(several, list | tuple) else list(several)
        if len(listed) > MAX_ITEMS:
            raise InvalidFlow(
                f"{where} is mapped over {len(listed):,} items; at most {MAX_ITEMS:,} are allowed.",
                field=where,
                got=len(listed),
                hint="Hand over batches: lists of items, one list per task.",
            )
        return self._unchanged(several) or self._template(listed, where, 1)

    def _template(self, value: object, where: str, depth: int) -> AnyTemplate:
        if isinstance(value, Handle):
            return output_of(self, cast("Handle[Any]", value))
        if isinstance(value, Test):
            raise InvalidFlow(
                f"{where} is a condition, which has no value.",
                field=where,
                got=value,
                hint="Conditions serve when=; to hand on a truth, compute it in a step.",
            )
        if (param := self._param_of.get(id(value))) is not None:
            return param
        if id(value) in self._changeable and (param := self._unchanged(value)) is not None:
            return param
        if isinstance(value, list | tuple) and _holds_handle(cast("object", value), where):
            parts = cast("list[object]", value)
            return ListOf(
                tuple(
                    self._template(part, f"{where}[{index}]", depth + 1)
                    for index, part in enumerate(parts)
                )
            )
        if isinstance(value, dict) and _holds_handle(cast("object", value), where):
            pairs = cast("dict[object, object]", value)
            return DictOf(
                {
                    _text_key(key, where): self._template(part, f"{where}.{key}", depth + 1)
                    for key, part in pairs.items()
                }
            )
        return self._const(cast("object", value), where)

    def _unchanged(self, value: object) -> Param | None:
        """The parameter that `value` is, while it still says what the run stores under that name.

        A step takes what its argument is when it is called: a list that the body has
        changed since it was given is a value of its own.
        """
        found = self._changeable.get(id(value))
        if found is None:
            return None
        param, given = found
        try:
            return param if codec.encode(value) == given else None
        except Unserialisable:  # by now it holds a step's result, or what cannot be kept
            return None

    def _const(self, value: object, where: str) -> Const:
        # Scalars are told apart by identity. A container may have changed since the last call that
        # took it, so that only its content counts.
        key: object = id(value)
        found = self._const_of.get(key) if isinstance(value, _SCALARS) else None
        if found is not None:
            return Const(found)
        raw = self._encode(value, where)
        if not isinstance(value, _SCALARS):
            key = raw
            if (found := self._const_of.get(key)) is not None:
                return Const(found)
        self._alive.append(value)  # an id is unique only as long as its object lives
        self._const_of[key] = len(self._consts)
        self._consts.append(raw)
        return Const(len(self._consts) - 1)

    def _encode(self, value: object, where: str) -> bytes:
        try:
            return codec.encode(value, where)
        except Unserialisable as error:
            if error.got == Handle.__name__:
                raise InvalidFlow(
                    f"{error.field} is a step's result inside a {type(value).__name__}.",
                    field=error.field,
                    hint="Results may stand in lists, tuples and dicts; build other things in a step.",
                ) from error
            raise


def _text_key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise InvalidFlow(
            f"{where} has a step's result in a dict whose keys are not text.",
            field=where,
            got=key,
            hint="Use text as keys.",
        )
    return key


def _holds_handle(value: object, where: str) -> bool:
    """Whether a step's result stands anywhere inside lists, tuples and dicts."""
    stack: list[tuple[object, int]] = [(value, 1)]
    while stack:
        part, depth = stack.pop()
        if isinstance(part, Handle | Test):
            return True
        if not isinstance(part, list | tuple | dict):
            continue
        if depth > MAX_DEPTH:
            raise Unserialisable(
                f"{where} is nested more than {MAX_DEPTH} deep (or contains itself).",
                field=where,
                got=type(value).__name__,
                hint="Flatten it, or hand over a file's path.",
            )
        inside = cast("dict[object, object]", part) if isinstance(part, dict) else None
        several = cast("list[object]", part) if inside is None else inside.values()
        stack.extend((each, depth + 1) for each in several)
    return False
