"""The graph of a run as SVG: one box per step, with how many of its tasks are in which state.

Colour says the state, and so does a mark in each box. Edges after which a step runs only on failure, always, or
on a condition are drawn in other ways. A graph of very many steps is folded: calls of one step that need the same
are one box. All text comes from users: it is escaped here, in one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final
from unicodedata import east_asian_width
from urllib.parse import quote

import msgspec

from locktender.base.graph import TRACE
from locktender.client.views import GraphInfo, NodeInfo
from locktender.server.ui.graph_layout import Placed, Point, place, ranks
from locktender.server.ui.words import brief, clean, step_name

WIDTH: Final = 196.0
HEIGHT: Final = 50.0
TALL: Final = 62.0
"""Of a mapped step: it has a bar."""
MARGIN: Final = 10.0
MAX_DRAWN: Final = 160
"""More steps are folded."""
ROOM: Final = WIDTH - 36 - 8
"""For the texts of a box."""
NAME_EM: Final = ROOM / 13
NOTE_EM: Final = ROOM / 11.5 / 0.88
"""The same in the sizes of their fonts (run.css); notes are not bold."""
_NARROW, _WIDE = frozenset("ijlIftr.,:;'|!()[]/·- "), frozenset("mwMWQO@%&—…")
ORDER: Final = (
    "failed", "timed_out", "abandoned", "running", "scheduled", "requested", "handed_back",
    "pending", "cancelled", "skipped", "completed",
)  # fmt: skip
"""What a box shows of several states: the first of these."""
CALLED: Final = {
    "requested": "waiting", "scheduled": "offered", "timed_out": "timed out",
    "handed_back": "handed back", "completed": "done", "pending": "to come",
}  # fmt: skip
MARKS: Final = {
    "completed": "M4 8.5l2.700 2.700L12 5.500",
    "failed": "M5 5l6 6M11 5l-6 6",
    "timed_out": "M8 4.500V8l2.500 1.500M8 8",
    "abandoned": "M5 5l6 6M11 5l-6 6",
    "running": "M6.200 4.800l5 3.200-5 3.200z",
    "scheduled": "M4.500 8h6M8.500 5.500L11 8l-2.500 2.500",
    "requested": "M6.200 5v6M9.800 5v6",
    "pending": "M5.500 8h.01M8 8h.01M10.500 8h.01",
    "cancelled": "M4.800 8h6.400",
    "skipped": "M5 5.500L8 8l-3 2.500M8.500 5.500L11.500 8l-3 2.500",
    "handed_back": "M11 8H5M7.500 5.500L5 8l2.500 2.500",
    "idle": "M8 8h.01",
}


@dataclass(slots=True)
class Box:
    """A step, or several calls of one."""

    name: str
    step: str
    calls: int = 1
    mapped: bool = False
    wait: str | None = None
    event: str | None = None
    condition: str = ""
    run_if: str = "success"
    pools: Mapping[str, int] = field(default_factory=dict[str, int])
    tasks: Counter[str] = field(default_factory=Counter[str])

    @property
    def state(self) -> str:
        return next((each for each in ORDER if self.tasks.get(each)), "idle")

    @property
    def height(self) -> float:
        return TALL if self.mapped or self.calls > 1 else HEIGHT


def boxes_of(graph: GraphInfo) -> tuple[list[Box], list[tuple[int, int]]]:
    """Boxes and edges, folded where there are many."""
    graph = _own_steps(graph)
    at = {node.name: number for number, node in enumerate(graph.nodes)}
    needs = [sorted({at[each] for each in node.after if each in at}) for node in graph.nodes]
    many = len(graph.nodes) > MAX_DRAWN
    group = _folded(graph.nodes, needs) if many else list(range(len(graph.nodes)))
    boxes: list[Box] = []
    numbers: dict[int, int] = {}
    for number, node in enumerate(graph.nodes):
        known = numbers.get(group[number])
        if known is None:
            numbers[group[number]] = len(boxes)
            boxes.append(_box(node))
        else:
            boxes[known].calls += 1
            boxes[known].tasks.update(node.tasks)
            boxes[known].name = node.step
    edges = {
        (numbers[group[source]], numbers[group[number]])
        for number, several in enumerate(needs)
        for source in several
    }
    return boxes, sorted(edge for edge in edges if edge[0] != edge[1])


def _own_steps(graph: GraphInfo) -> GraphInfo:
    """Without the step that traces the flow, unless that is what the run does, or where it failed."""
    nodes = [
        node
        for node in graph.nodes
        if node.step != TRACE or any(node.tasks.get(each) for each in ORDER[:7])
    ]
    return msgspec.structs.replace(graph, nodes=nodes)


def _box(node: NodeInfo) -> Box:
    return Box(
        node.name, node.step, 1, node.mapped, node.wait, node.event, node.condition, node.run_if,
        node.pools, Counter(node.tasks),
    )  # fmt: skip


def _folded(nodes: Sequence[NodeInfo], needs: Sequence[Sequence[int]]) -> list[int]:
    """For each node the first one that it is drawn with: of the same layer and step, and that needs the same."""
    layers = ranks(len(nodes), [(each, n) for n, several in enumerate(needs) for each in several])
    group = list(range(len(nodes)))
    for exact in (True, False):
        first: dict[object, int] = {}
        for number in sorted(range(len(nodes)), key=lambda each: (layers[each], each)):
            node = nodes[number]
            same = frozenset(group[each] for each in needs[number]) if exact else None
            kind = layers[number], node.step, node.wait, node.event, node.run_if, same
            group[number] = first.setdefault(kind, number)
        if len(set(group)) <= MAX_DRAWN:
            break
    return group


def svg(graph: GraphInfo, run: str) -> str:
    """The picture; each box is a link to the tasks of its step."""
    boxes, edges = boxes_of(graph)
    if not boxes:
        return ""
    placed = place([(WIDTH, box.height) for box in boxes], edges)
    width, height = placed.width + 2 * MARGIN, placed.height + 2 * MARGIN
    head = (
        f'<svg class="graph" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="{-MARGIN:g} {-MARGIN:g} {width:.0f} {height:.0f}" role="group"'
        f' aria-label="{escape(_said(graph, boxes))}">'
    )
    parts = [head, *_marker(), *_edges(placed, edges, boxes)]
    for box, corner in zip(boxes, placed.nodes, strict=True):
        parts += _drawn(box, corner, run)
    return "".join([*parts, "</svg>"])


def _said(graph: GraphInfo, boxes: Sequence[Box]) -> str:
    states = Counter(box.state for box in boxes)
    told = ", ".join(f"{count} {CALLED.get(state, state)}" for state, count in states.items())
    return f"Graph of {clean(graph.flow)}: {len(graph.nodes)} steps; {told}"


def _marker() -> Iterable[str]:
    for kind in ("plain", "failure"):
        yield (
            f'<marker id="arrow-{kind}" class="e-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            ' markerHeight="7" orient="auto-start-reverse"><path d="M1 1l6 3-6 3z"/></marker>'
        )


def _edges(placed: Placed, edges: Sequence[tuple[int, int]], boxes: Sequence[Box]) -> Iterable[str]:
    for points, (source, target) in zip(placed.edges, edges, strict=True):
        box = boxes[target]
        kind = {"failure": "failure", "always": "always"}.get(box.run_if, "plain")
        kind = "when" if kind == "plain" and box.condition else kind
        arrow = "failure" if kind == "failure" else "plain"
        live = " live" if box.state == "running" and boxes[source].state == "completed" else ""
        yield f'<path class="edge e-{kind}{live}" d="{_way(points)}" marker-end="url(#arrow-{arrow})"/>'


def _way(points: Sequence[Point]) -> str:
    """Curves between layers, straight lines through them."""
    first = points[0]
    parts = [f"M{first.x:.1f} {first.y:.1f}"]
    for number in range(1, len(points)):
        before, at = points[number - 1], points[number]
        if number % 2 == 0:
            parts.append(f"L{at.x:.1f} {at.y:.1f}")
        else:
            middle = (before.x + at.x) / 2
            parts.append(
                f"C{middle:.1f} {before.y:.1f} {middle:.1f} {at.y:.1f} {at.x:.1f} {at.y:.1f}"
            )
    return "".join(parts)


def _drawn(box: Box, corner: Point, run: str) -> Iterable[str]:
    state, height = box.state, box.height
    where = f"/runs/{quote(run, safe='')}?tab=tasks&amp;step={quote(box.name, safe='')}"
    several = box.mapped or box.calls > 1
    yield (
        f'<a class="node n-{state}{" wait" * (box.wait is not None)}" href="{where}"'
        f' data-step="{escape(box.name)}">'
        f'<g transform="translate({corner.x:.1f} {corner.y:.1f})">'
    )
    yield f"<title>{escape(_title(box))}</title>"
    if several:
        yield f'<rect class="behind" x="6" y="-5" width="{WIDTH - 12:g}" height="20" rx="8"/>'
    round_ = 24 if box.wait is not None else 9
    yield f'<rect class="box" width="{WIDTH:g}" height="{height:g}" rx="{round_}"/>'
    yield (
        f'<g transform="translate(10 12)"><circle class="mark" cx="8" cy="8" r="8.500"/>'
        f'<path class="sign" d="{MARKS[state]}"/></g>'
    )
    yield f'<text class="name" x="36" y="21">{escape(_cut(step_name(box.name), NAME_EM))}</text>'
    yield f'<text class="note" x="36" y="38">{escape(_cut(_note(box), NOTE_EM))}</text>'
    if several:
        yield from _bar(box, height - 10)
    yield "</g></a>"


def _bar(box: Box, y: float) -> Iterable[str]:
    total = sum(box.tasks.values())
    yield f'<rect class="rail" x="10" y="{y:g}" width="{WIDTH - 20:g}" height="4" rx="2"/>'
    at = 10.0
    for state in reversed(ORDER):
        count = box.tasks.get(state, 0)
        if count and total:
            part = (WIDTH - 20) * count / total
            yield (
                f'<rect class="part p-{state}" x="{at:.1f}" y="{y:g}" width="{max(part, 1):.1f}" height="4"/>'
            )
            at += part


def _note(box: Box) -> str:
    """What is most worth a line."""
    total = sum(box.tasks.values())
    if box.event is not None and box.state in ("requested", "idle"):
        return f"event {box.event}"
    if box.mapped or box.calls > 1:
        done = box.tasks.get("completed", 0)
        busy = [
            f"{brief(box.tasks[each])} {CALLED.get(each, each)}"
            for each in ORDER[:6]
            if box.tasks.get(each)
        ]
        if not total:
            return "items not known yet" if box.mapped else f"{box.calls} calls"
        of = " of " if total < 10_000 else "/"
        return " · ".join([f"{brief(done)}{of}{brief(total)}", *busy[:1]])
    if box.state == "idle" and box.run_if != "success":
        return {"failure": "after a failure", "always": "always, at the end"}[box.run_if]
    if box.state in ("idle", "skipped") and box.condition:
        return f"if {box.condition}"
    said = CALLED.get(box.state, box.state) if box.state != "idle" else "to come"
    if box.wait is not None:
        return {"requested": "asleep", "completed": "slept"}.get(box.state, said)
    pools = ", ".join(box.pools)
    return f"{said} · {pools}" if pools else said


def _title(box: Box) -> str:
    states = ", ".join(
        f"{box.tasks[each]:,} {CALLED.get(each, each)}" for each in ORDER if box.tasks.get(each)
    )
    parts = [clean(step_name(box.name))]
    if box.step and box.step not in (box.name, TRACE):
        parts.append(f"step {clean(box.step)}")
    if box.calls > 1:
        parts.append(f"{box.calls} calls")
    parts += [f"pool {clean(name)}: {slots}" for name, slots in box.pools.items()]
    if box.condition:
        parts.append(f"only if {clean(box.condition)}")
    if box.run_if != "success":
        parts.append(
            "runs after a failure" if box.run_if == "failure" else "runs always, at the end"
        )
    if box.event is not None:
        parts.append(f"waits for event {clean(box.event)}")
    elif box.wait is not None:
        parts.append("sleeps")
    return "; ".join([*parts, states or "to come"])


def _em(character: str) -> float:
    """How wide it is at most, in the size of the font, bold, in the widest of the usual fonts."""
    if east_asian_width(character) in "WF":
        return 1.3 if ord(character) > MAX_PLANE else 1.05
    if character in _NARROW:
        return 0.48
    if character in _WIDE or ord(character) > MAX_LATIN:
        return 1.15
    return 0.8 if character.isupper() else 0.7


MAX_PLANE: Final = 0xFFFF
MAX_LATIN: Final = 0x24F


def _cut(text: str, most: float) -> str:
    """The middle is left out: ends tell names apart. `most`: how wide it may be."""
    shown = clean(text)
    if sum(map(_em, shown)) <= most:
        return shown
    left = most - _em("…")
    head = tail = 0
    while True:
        # By turns one more of the beginning and one more of the end.
        added = shown[head] if head <= tail else shown[-1 - tail]
        left -= _em(added)
        if left < 0:
            return f"{shown[:head]}…{shown[len(shown) - tail :]}"
        head, tail = (head + 1, tail) if head <= tail else (head, tail + 1)
