"""An SVG of horizontal bars on a logarithmic scale: one group per measure, one bar per contender."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from bench.peers.contenders import CONTENDERS
from bench.peers.table import best, better, number

GROUPS = {
    "steps": "no-op steps/s",
    "runs": "single-step runs/s",
    "idle": "idle submit → body, p50 ms",
    "limit_10": "limit of 10, bodies of 10 ms: wall ÷ ideal",
}
COLOURS = {"ours": "#1f6feb", "peer": "#8c959f", "bare": "#d0d7de"}
WIDTH, LABEL, BAR, GAP, HEAD = 760, 200, 16, 5, 34


def svg(found: Mapping[str, Mapping[str, float]]) -> str:
    parts: list[str] = []
    y = 10
    for measure, title in GROUPS.items():
        rows = [
            (each, value)
            for each in CONTENDERS
            if each.name in found and (value := best(found[each.name], measure))
        ]
        if not rows:
            continue
        parts.append(_text(10, y + 18, f"{title} ({better(measure)}, logarithmic)", "bold"))
        y += HEAD
        low = min(value for _, value in rows) / 2
        span = math.log(max(value for _, value in rows) / low)
        for each, value in rows:
            length = (WIDTH - LABEL - 90) * math.log(value / low) / span
            parts.append(_text(LABEL - 8, y + 12, each.name, anchor="end"))
            parts.append(
                f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" '
                f'fill="{COLOURS[each.kind]}"/>'
            )
            parts.append(_text(LABEL + length + 6, y + 12, number(value)))
            y += BAR + GAP
        y += 14
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
        f'viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="#1f2328">{escape(text)}</text>'
    )
