"""The trace cache of one flow: nodes and graphs of earlier traces, so that equal ones are made and checked once.

A flow's body is called for every run, whatever is known of the runs before it.
Most traces repeat an earlier one: the same steps, called in the same order with
the same templates. Then the cache has each node, and at the end the graph with its
hash and its JSON, while it is still known (`known_graphs`). A trace that differs
from there on makes its nodes as if it were the first.

No value of a run is kept here: templates hold none. Several threads may trace
one flow at a time: two may add the same place twice, which costs a little room
and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from locktender.base.graph import AnyTemplate, Node, OnError, Output

MAX_PLACES = 2_000
"""Of one flow. Of a longer trace the first nodes are cached."""
MAX_BRANCHES = 8
"""Of one place. A flow whose calls differ each time is traced without the cache."""

Args = tuple[AnyTemplate, ...]
Kwargs = dict[str, AnyTemplate]
_NOWHERE = Node("", "")


@dataclass(frozen=True, slots=True)
class Over:
    """How a step is mapped."""

    items: AnyTemplate
    window: int | None
    on_error: OnError
    take_errors: bool


class Taken(NamedTuple):
    """A call that always makes the same node at the same place."""

    call: object
    args: Args
    kwargs: Kwargs
    over: Over | None


class TracePlace:
    """The state of a trace after one node and all those before it."""

    __slots__ = ("_cache", "_ends", "_next", "node", "output", "returns", "taken")

    def __init__(
        self, cache: TraceCache, node: Node, index: int, taken: Taken | None, returns: Any
    ) -> None:
        self.node: Node = node
        self.output: Output = Output(index)
        self.taken: Taken | None = taken
        """None: the node is known by its content alone."""
        self.returns: Any = returns
        self._cache = cache
        self._next: list[TracePlace] = []
        # Digests: a trace of a thousand places may end at each, and its graphs be a million nodes.
        self._ends: list[tuple[AnyTemplate | None, str]] = []

    def by_call(
        self, call: object, args: Args, kwargs: Kwargs, over: Over | None
    ) -> TracePlace | None:
        """Where this call leads, if another run has made it here."""
        for each in self._next:
            taken = each.taken
            if (
                taken is not None
                and taken.call is call
                and taken.args == args
                and taken.kwargs == kwargs
                and taken.over == over
            ):
                return each
        return None

    def by_node(
        self, node: Node, index: int, taken: Taken | None, returns: Any
    ) -> TracePlace | None:
        """Where `node` leads, which is known from here on; None where no more are kept."""
        for each in self._next:
            if each.node == node:
                return each
        cache = self._cache
        if len(self._next) >= MAX_BRANCHES or cache.places >= MAX_PLACES:
            return None
        cache.places += 1
        place = TracePlace(cache, node, index, taken, returns)
        self._next.append(place)
        return place

    def end(self, result: AnyTemplate | None) -> str | None:
        """The digest of the graph of a run that ended here with this result."""
        for known, digest in self._ends:
            if known == result:
                return digest
        return None

    def ended(self, result: AnyTemplate | None, digest: str) -> None:
        if len(self._ends) < MAX_BRANCHES:
            self._ends.append((result, digest))


class TraceCache:
    """All that is known of one flow's traces."""

    def __init__(self) -> None:
        self.places: int = 0
        self.start: TracePlace = TracePlace(self, _NOWHERE, -1, None, Any)
