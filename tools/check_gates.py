"""Refuses a kind of gate that lacks its text, its checker rule or its scenario. Part of `make check`."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from locktender.kernel.explain import TASK_TEXTS
from locktender.kernel.explain_runs import RUN_TEXTS
from locktender.kernel.gates import KINDS
from locktender.observe.checker.audit import GATE_RULES, RULES
from locktender.observe.checker.waiting import TASK_GATES
from locktender.simulate.scenarios import GATE_SCENARIOS

TABLES: dict[str, Mapping[str, object]] = {
    "rows (kernel/gates KINDS)": KINDS,
    "text (kernel/explain TASK_TEXTS or explain_runs RUN_TEXTS)": {**TASK_TEXTS, **RUN_TEXTS},
    "checker rule (observe/checker/audit GATE_RULES)": GATE_RULES,
    "scenario (simulate/scenarios GATE_SCENARIOS)": GATE_SCENARIOS,
}


def missing(tables: Mapping[str, Mapping[str, object]] = TABLES) -> list[str]:
    """One sentence for each kind that lacks something."""
    kinds = sorted(set().union(*tables.values()))
    found = [
        f"gate kind {kind!r} has no {what}."
        for kind in kinds
        for what, table in tables.items()
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
            f"gate kind {kind!r} is not in TASK_GATES (observe/checker/waiting): waits at it would be refused."
            for kind in TASK_TEXTS
            if kind not in TASK_GATES
        ]
    )


if __name__ == "__main__":
    problems = missing()
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    sys.exit(1 if problems else 0)
