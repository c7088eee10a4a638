"""Count gates: executing runs, runs with a tag, tasks of one run, items of one map's window."""

from __future__ import annotations

from typing import Literal

from locktender.kernel.gates.protocol import Gate


class CountGate(Gate):
    """At most `limit` at once (−1: unlimited), each of which takes one."""

    __slots__ = ()

    def __init__(
        self, kind: Literal["runs", "tag", "run", "window", "pause"], name: str, limit: int
    ) -> None:
        super().__init__(kind, name, limit)
