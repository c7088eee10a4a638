"""Pauses of runs that are ending: their clean-up goes on, and the history says why."""

from __future__ import annotations

import pytest
from tests.support.worlds import graph, needs, settle, step, world

from locktender.base.clock import SECOND


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
