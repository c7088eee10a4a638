"""The worker gate: where lanes wait for a worker that can run a step and has a free permit."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from locktender.base.graph import Node
from locktender.kernel.gates.protocol import Block, Gate


class Requirement(NamedTuple):
    """What a task asks of a worker."""

    executor: str
    step: str
    signature: str
    needs: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """As samples of its holders call it: the same in every term, short where it has many labels."""
        return blake2b(repr(tuple(self)).encode(), digest_size=6).hexdigest()

    @classmethod
    def of(cls, spec: Node) -> Requirement:
        needs = tuple(sorted(spec.needs.items()))
        return cls(spec.executor, spec.step, spec.signature, needs)


class WorkerGate(Gate):
    """Open while `pick` finds a worker. Permits are counted per worker, in `kernel/placement.py`."""

    __slots__ = ("_pick", "requirement", "unfit")

    def __init__(
        self, requirement: Requirement, pick: Callable[[Requirement], object | None]
    ) -> None:
        super().__init__("worker", requirement.step, -1)
        self.requirement: Requirement = requirement
        self.unfit: bool = False
        """No worker that lives could take such a task, however many permits it had."""
        self._pick = pick

    @property
    def room(self) -> int:
        return 0 if self._pick(self.requirement) is None else 1

    def blocks(self, need: int, now: int) -> Block | None:  # noqa: ARG002
        return Block(self, "worker", need) if self._pick(self.requirement) is None else None

    def label(self, reason: str = "") -> str:  # noqa: ARG002
        return "worker"
