"""The graph of a run as SVG: what it says, and that names of users stay text."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from locktender.base.graph import TRACE
from locktender.client.views import GraphInfo, NodeInfo
from locktender.server.ui.graph_svg import MAX_DRAWN, boxes_of, svg

SVG = "{http://www.w3.org/2000/svg}"


def node(name: str, *after: str, step: str = "", **more: object) -> NodeInfo:
    given: dict[str, object] = {
        "mapped": False, "window": None, "pools": {}, "wait": None, "tasks": {}, **more,
    }  # fmt: skip
    return NodeInfo(name=name, step=step or name, executor="async", after=list(after), **given)  # type: ignore[arg-type]


def drawn(*nodes: NodeInfo) -> ET.Element:
    return ET.fromstring(svg(GraphInfo("f", True, list(nodes)), "run"))


def test_each_step_is_a_link_that_says_its_state():
    picture = drawn(
        node("read", tasks={"completed": 1}),
        node("clean", "read", tasks={"completed": 3, "running": 1, "requested": 6}, mapped=True),
        node("tell", "clean", run_if="failure"),
    )

    links = {each.get("data-step"): each for each in picture.iter(f"{SVG}a")}
    assert set(links) == {"read", "clean", "tell"}
    assert "n-running" in (links["clean"].get("class") or "")
    title = links["clean"].find(f".//{SVG}title")
    assert title is not None
    assert title.text == "clean; 1 running, 6 waiting, 3 done"
    kinds = [each.get("class") for each in picture.iter(f"{SVG}path") if each.get("marker-end")]
    assert kinds == ["edge e-plain live", "edge e-failure"]


def test_a_box_leads_to_the_tasks_of_its_step():
    [link] = drawn(node("read & write")).iter(f"{SVG}a")

    assert link.get("href") == "/runs/run?tab=tasks&step=read%20%26%20write"


def test_the_step_that_traces_a_flow_is_drawn_where_it_fails():
    done, failed = (node(TRACE, tasks={each: 1}) for each in ("completed", "failed"))

    assert svg(GraphInfo("f", False, [node(TRACE)]), "run") == ""
    links = drawn(done, node("read")).iter(f"{SVG}a")
    assert [each.get("data-step") for each in links] == ["read"]
    assert "trace the flow" in "".join(drawn(failed).itertext())


def test_numbers_of_a_large_map_are_short():
    states = {"completed": 25_580, "scheduled": 120, "requested": 74_300}

    picture = drawn(node("tiny", mapped=True, tasks=states))

    notes = [each.text for each in picture.iter(f"{SVG}text") if each.get("class") == "note"]
    assert notes == ["25.6k/100k · 120 offered"]


def test_names_of_users_stay_text():
    name = "<img src=x onerror=alert(1)>\"'&\u202e"

    picture = drawn(node(name, condition=name, event=name, wait="event", pools={name: 1}))

    assert not list(picture.iter(f"{SVG}img"))
    [link] = picture.iter(f"{SVG}a")
    assert link.get("data-step") == name
    assert "\u202e" not in "".join(picture.itertext())


def test_waits_are_drawn_in_another_shape():
    picture = drawn(node("nap", wait="sleep", tasks={"requested": 1}), node("work"))

    corners = [each.get("rx") for each in picture.iter(f"{SVG}rect") if each.get("class") == "box"]
    assert corners == ["24", "9"]


def test_a_thousand_calls_of_one_step_are_one_box():
    nodes = [node("first")]
    nodes += [node(f"part-{n}", "first", step="part", tasks={"running": 1}) for n in range(1_000)]
    nodes += [node("last", *(each.name for each in nodes[1:]))]

    boxes, edges = boxes_of(GraphInfo("f", True, nodes))

    assert [(box.name, box.calls) for box in boxes] == [("first", 1), ("part", 1_000), ("last", 1)]
    assert boxes[1].tasks == {"running": 1_000}
    assert edges == [(0, 1), (1, 2)]


def test_a_thousand_different_steps_are_drawn():
    nodes = [node(f"s{n}", *([f"s{n // 2}"] if n else [])) for n in range(1_000)]

    boxes, _ = boxes_of(GraphInfo("f", True, nodes))

    assert len(boxes) == 1_000 > MAX_DRAWN
    assert svg(GraphInfo("f", True, nodes), "run") == svg(GraphInfo("f", True, nodes), "run")
