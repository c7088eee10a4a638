"""Texts of a graph end inside their boxes, as a real browser draws them."""

from __future__ import annotations

from importlib.resources import files

from tests.support.run_pages import chromium

from locktender.client.views import GraphInfo, NodeInfo
from locktender.server.ui.graph_svg import WIDTH, svg

NAMES = (
    "W" * 60,
    "mw" * 30,
    "reconcile_every_ledger_of_the_month",
    "RECONCILE EVERY LEDGER",
    "每月核对所有账目并且发送报告给所有的人",
    "🚀" * 30,
    "ДОГОВОР_СВЕРКА_ЕЖЕМЕСЯЧНАЯ",
    "illicit lilies fill little fjords with light",
)


def node(name: str) -> NodeInfo:
    return NodeInfo(
        name=name, step=name, executor="async", after=[], mapped=False, window=None,
        pools={name: 1}, wait=None, tasks={"running": 1},
    )  # fmt: skip


def test_long_names_end_inside_their_boxes():
    style = (files("locktender.server.ui") / "static" / "run.css").read_text()
    picture = svg(GraphInfo("f", True, [node(name) for name in NAMES]), "run")
    with chromium() as browser:
        page = browser.new_page()
        page.set_content(f"<style>{style}</style>{picture}")
        ends = page.eval_on_selector_all(
            ".node text", "all => all.map(each => each.getBBox().x + each.getBBox().width)"
        )
        page.close()
    assert len(ends) == 2 * len(NAMES)
    assert max(ends) <= WIDTH - 4
    # Not cut to little: more than half of the room is used.
    assert min(ends) > WIDTH / 2
