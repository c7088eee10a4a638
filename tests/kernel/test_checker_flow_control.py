"""The checker on pauses and throttles: what breaks them is found."""

from __future__ import annotations

from tests.support.history_writer import HistoryWriter

from locktender.base.clock import SECOND
from locktender.base.graph import Graph, Node
from locktender.observe.checker import check

FLOW = Graph("f", (Node("a", "a"), Node("b", "b")))
MINUTE = {"name": "key k", "count": 2, "per_us": 60 * SECOND}


def tell() -> HistoryWriter:
    story = HistoryWriter(g=FLOW)
    story.lead()
    story.worker()
    return story


def found(story: HistoryWriter) -> set[str]:
    return {each.rule for each in check(story.history())}


def limit(story: HistoryWriter, kind: str, name: str, rule: object) -> None:
    story.event("limit", "", "in_force", data={"kind": kind, "name": name, "rule": rule})


def submit(story: HistoryWriter, run: int, wake_at: int = 0, **data: object) -> None:
    after = "waiting" if wake_at else "queued"
    more = {"wake_at": wake_at} if wake_at else {}
    given = {"flow": "f", "graph": "g", "tags": {}, "generation": 0, **more, **data}
    story.event("run", "new", after, run=run, actor="client", data=given)


def test_a_task_of_a_paused_run_starts():
    story = tell()
    story.begin(1)
    task = story.request(1, 0)
    limit(story, "run", "id-1", {"run": 1})
    assert found(story) == set()
    story.grant(task)
    assert found(story) == {"pauses"}


def test_a_lifted_pause_and_a_resumed_flow_hold_nothing():
    for lifted in (True, False):
        story = tell()
        story.begin(1)
        task = story.request(1, 0)
        limit(story, "flow", "f", {"by": "ann"})
        if lifted:
            story.event("pause", "paused", "lifted", run=1)
        else:
            limit(story, "flow", "f", None)
        story.grant(task)
        assert found(story) == set()


def test_a_start_too_soon_under_a_throttle():
    story = tell()
    submit(story, 1, throttle=MINUTE)
    submit(story, 2, throttle=MINUTE)
    submit(story, 3, story.at + 60 * SECOND, throttle=MINUTE)
    submit(story, 4, throttle={**MINUTE, "name": "key o"})
    assert found(story) == set()
    submit(story, 5, story.at + 59 * SECOND, throttle=MINUTE)
    assert found(story) == {"throttles"}
