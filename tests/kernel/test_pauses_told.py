"""Pauses in the history: of runs that are ending, and of runs that were not read yet."""

from __future__ import annotations

import pytest
from tests.support.worlds import graph, needs, run_row, settle, step, world

from locktender.base.clock import SECOND
from locktender.base.limits import Limits, PauseRule
from locktender.kernel.scheduler import Scheduler

NOW = 10**15


@pytest.mark.parametrize("changes", [False, True])
def test_a_pause_after_the_deadline_holds_no_clean_up(changes: bool):
    """Also where the pause comes into force with the term of the next leader."""
    made = world(
        rules={("pool", "db"): {"limit": 1}},
        took=lambda _rng, node: (6 if node.name == "hog" else 1) * SECOND,
    )
    made.submit(graph(step("hog", pools=needs(db=1)), flow="other"))
    ending = graph(step("a"), step("c", run_if="always", pools=needs(db=1)))
    made.plan(SECOND // 10, lambda: made.submit(ending, deadline=2 * SECOND))
    if changes:
        made.plan(3 * SECOND, made.kill_leader)
        made.plan(4 * SECOND, made.lead)
    made.plan(3 * SECOND + SECOND // 2, lambda: made.set_rule("flow", "flow", {"since": 1}))
    settle(made)  # every promise is checked
    assert [row.state for row in made.model.runs.values()] == ["succeeded", "timed_out"]
    said = [event for event in made.model.events if event.subject == "pause"]
    assert [(event.after, event.data["reason"]) for event in said] == [("lifted", "deadline")]


def _paused(seq: int) -> Limits:
    return Limits(paused_runs={seq: PauseRule("anna", 1, "a look", seq)})


@pytest.mark.parametrize("first", ["pause", "run"])
def test_a_pause_is_told_whichever_the_leader_reads_first(first: str):
    """A client submits a run and pauses it: a busy leader may read both in one turn."""
    flow = graph(step())
    lead = Scheduler(Limits(runs_paused=True), term=1, owner="me")
    lead.graphs[flow.flow] = flow
    if first == "run":
        lead.put_head(run_row(7))
    lead.set_limits(_paused(7), [])
    lead.put_head(run_row(7))
    lead.put_head(run_row(7))  # read again: told once
    told = [change for each in lead.cycle(NOW).commit.events for change in each.changes]
    pauses = [(each.after, each.data) for each in told if each.subject == "pause"]
    assert pauses == [("paused", {"by": "anna", "reason": "a look"})]
    assert not lead.ledger.runs


def test_a_pause_that_ended_before_its_run_was_read_is_not_told():
    flow = graph(step())
    lead = Scheduler(Limits(), term=1, owner="me")
    lead.graphs[flow.flow] = flow
    lead.set_limits(_paused(7), [])
    lead.set_limits(Limits(), [])
    lead.put_head(run_row(7))
    told = [change for each in lead.cycle(NOW).commit.events for change in each.changes]
    assert not [each for each in told if each.subject == "pause"]
    assert 7 in lead.ledger.runs
