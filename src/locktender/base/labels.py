"""The labels that `[labels]` declares, and what is said of one that is not among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from locktender.base.errors import InvalidFlow
from locktender.base.graph import Graph
from locktender.base.names import did_you_mean

Declared = Mapping[str, tuple[str, ...]]
"""Label → its values; none named: any value."""


class Undeclared(NamedTuple):
    what: str
    hint: str


def undeclared(label: str, value: str, declared: Declared) -> Undeclared | None:
    """What the set does not know: the label, or its value; None where it has both."""
    allowed = declared.get(label)
    if allowed is None:
        return Undeclared(f"the label {label!r}", did_you_mean(label, declared) or "It is empty.")
    if allowed and value not in allowed:
        return Undeclared(f"the value {value!r}", did_you_mean(value, allowed) or "")
    return None


def never(needs: Mapping[str, str], declared: Declared | None) -> str | None:
    """Why no worker can ever have what a step needs; None where one can."""
    if declared is None:
        return None
    for label, value in needs.items():
        unknown = undeclared(label, value, declared)
        if unknown is not None:
            return (
                f"it needs {label}={value}, and [labels] does not know {unknown.what}:"
                " never, as settings are now"
            )
    return None


def check_labels(graph: Graph, declared: Declared) -> None:
    """Refuses a step that no worker can ever run."""
    for index, node in enumerate(graph.nodes):
        for label, value in node.needs.items():
            unknown = undeclared(label, value, declared)
            if unknown is not None:
                raise InvalidFlow(
                    f"step {node.name!r} needs a worker with {label}={value}, and [labels] does not know"
                    f" {unknown.what}: it would never start.",
                    field=f"nodes[{index}].needs.{label}",
                    got=value,
                    hint=f"{unknown.hint} Or add it to [labels] in the settings.".lstrip(),
                )
