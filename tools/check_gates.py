"""Refuses a kind of gate that lacks types, text, opening, checker rule or scenario. Part of `make check`.

A gate in `kernel/gates/` whose kind is listed nowhere is refused, too, and one with a row for its state whose
gate lacks `dump()` or `restore()`, or the other way round.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module

from locktender.kernel import gates
from locktender.kernel.explain import TASK_TEXTS
from locktender.kernel.explain_runs import RUN_TEXTS
from locktender.kernel.gates import KINDS
from locktender.kernel.gates.protocol import Gate, SlotGate
from locktender.kernel.openings import TASK_OPENINGS
from locktender.observe.checker.audit import GATE_RULES, RULES
from locktender.observe.checker.waiting import TASK_GATES
from locktender.server.ui.words import FAMILIES, GATE_TEXTS
from locktender.simulate.scenarios import GATE_SCENARIOS

TABLES: dict[str, Mapping[str, object]] = {
    "rule and state types (kernel/gates KINDS)": KINDS,
    "text (kernel/explain TASK_TEXTS or explain_runs RUN_TEXTS)": {**TASK_TEXTS, **RUN_TEXTS},
    "checker rule (observe/checker/audit GATE_RULES)": GATE_RULES,
    "scenario (simulate/scenarios GATE_SCENARIOS)": GATE_SCENARIOS,
}
UI_TABLES: dict[str, Mapping[str, object]] = {
    "family in the UI (server/ui/words FAMILIES)": {
        kind: family for family, (_, kinds) in FAMILIES.items() for kind in kinds.split()
    },
    "text in the UI (server/ui/words GATE_TEXTS)": GATE_TEXTS,
}
"""They name more than gates: what is in them alone is no kind of gate."""


def subclasses(of: type[Gate]) -> Iterator[type[Gate]]:
    for each in of.__subclasses__():
        yield each
        yield from subclasses(each)


def unlisted() -> list[str]:
    """One sentence for each gate that no kind names. What `protocol.py` defines is for others to derive from."""
    for module in pkgutil.iter_modules(gates.__path__, f"{gates.__name__}."):
        import_module(module.name)
    listed = {kind.gate for kind in KINDS.values()}
    return [
        f"{each.__module__}.{each.__qualname__} is the gate of no kind: list it in KINDS (kernel/gates)."
        for each in dict.fromkeys(subclasses(Gate))
        if each not in listed and each.__module__ != Gate.__module__
    ]


def unstored() -> list[str]:
    """One sentence for each kind and verb where KINDS names a row for the state and the gate does not override the
    verb, or the other way round."""
    return [
        f"gate kind {kind!r} has {'a' if of.state else 'no'} row for its state (kernel/gates KINDS), but"
        f" {of.gate.__name__} {'does not override' if of.state else 'overrides'} {verb}()."
        for kind, of in KINDS.items()
        for verb in ("dump", "restore")
        if (of.state is not None)
        != (getattr(of.gate, verb, None) not in (None, getattr(SlotGate, verb)))
    ]


def missing() -> list[str]:
    """One sentence for each kind that lacks something."""
    kinds = sorted(set().union(*TABLES.values()))
    found = [
        f"gate kind {kind!r} has no {what}."
        for kind in kinds
        for what, table in (TABLES | UI_TABLES).items()
        if kind not in table
    ]
    return (
        found
        + [
            f"the rule of gate kind {kind!r} is not among the checker's RULES."
            for kind, rule in GATE_RULES.items()
            if rule not in RULES
        ]
        + [
            f"gate kind {kind!r} has no opening (kernel/openings TASK_OPENINGS)."
            for kind in TASK_TEXTS
            if kind not in TASK_OPENINGS
        ]
        + [
            f"gate kind {kind!r} is not in TASK_GATES (observe/checker/waiting): waits at it would be refused."
            for kind in TASK_TEXTS
            if kind not in TASK_GATES
        ]
    )


if __name__ == "__main__":
    problems = unlisted() + unstored() + missing()
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    sys.exit(1 if problems else 0)
