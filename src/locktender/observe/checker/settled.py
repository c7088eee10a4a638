"""Whether a node of a run has come to its end, from what the history shows."""

from __future__ import annotations

from locktender.observe.checker.plan import GraphPlan, NodePlan
from locktender.observe.checker.subjects import COMPLETED, OPEN, Run


def settled(run: Run, graph: GraphPlan, node: int) -> bool:
    """No task of `node` is open, and none is to come.

    A map over an empty list leaves no trace: a map without items counts as
    settled once everything it waits for is.
    """
    plan = graph.nodes[node]
    tally = run.nodes.get(node)
    total = 0 if tally is None else tally.total
    if tally is not None and tally.counts[OPEN]:
        return False
    if not plan.mapped:
        return total > 0
    if tally is not None and tally.unexpanded and not total:
        return True
    if plan.each_of is not None:
        source = run.nodes.get(plan.each_of)
        items = 0 if source is None else source.total
        return settled(run, graph, plan.each_of) and total >= items
    return total > 0 or all(settled(run, graph, need) for need in plan.needs)


def all_completed(run: Run, plan: NodePlan) -> bool:
    tally = run.nodes.get(plan.index)
    if tally is None:
        return plan.mapped
    return tally.counts[COMPLETED] == tally.total and not (tally.unexpanded and not tally.total)
