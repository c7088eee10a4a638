"""Graphs that were found sound, so that runs which share one check it, and keep it, once.

They are kept within a bound of bytes, those used last: a flow whose graph is
another for each run (a loop over its arguments) would keep them all otherwise.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from locktender.base import graph_check
from locktender.base.graph import Graph

MOST_GRAPHS = 1_000
MOST_BYTES = 8 * 1024 * 1024
"""Of all their JSON together. In memory a graph takes a few times as much."""


class Checked(NamedTuple):
    """A graph that was found sound, as it is stored."""

    graph: Graph
    digest: str
    body: bytes


class KnownGraphs:
    """By digest. Several threads may ask: at worst a graph is checked twice."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, Checked] = OrderedDict()
        self._bytes = 0
        self._keeping = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of JSON that are kept."""
        return self._bytes

    def get(self, digest: str) -> Checked | None:
        found = self._kept.get(digest)
        if found is None:
            return None
        try:
            self._kept.move_to_end(digest)
        except KeyError:  # another thread has just let it go
            return found
        return found

    def checked(self, graph: Graph) -> Checked:
        """`graph`, validated unless one like it was before."""
        digest, body = graph_check.digest(graph)
        found = self.get(digest)
        if found is None:
            graph_check.validate(graph)
            found = Checked(graph, digest, body)
            self._keep(found)
        return found

    def _keep(self, new: Checked) -> None:
        if len(new.body) > self._most_bytes:
            return
        with self._keeping:
            if new.digest in self._kept:
                return
            self._kept[new.digest] = new
            self._bytes += len(new.body)
            while self._bytes > self._most_bytes or len(self._kept) > MOST_GRAPHS:
                _, old = self._kept.popitem(last=False)
                self._bytes -= len(old.body)


known_graphs: KnownGraphs = KnownGraphs()
