"""The harness of `make bench` and `make bench-peers` on fixed numbers: no test judges a time."""
# ruff: noqa: E402 — the benchmarks are found only with the repository's folder in the path

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers import bodies
from bench.peers.contenders import CONTENDERS, REQUIREMENTS, chosen
from bench.peers.drive import Adapter
from bench.peers.plot import svg
from bench.peers.table import Goal, goals, markdown, medians
from bench.peers.workload import FULL, LIMIT, MEASURES, QUICK
from bench.report import Figure, Record, put_between_markers

sys.path.remove(str(ROOT))

ABOUT = {"rounds": 3, "cores": 2, "postgres": "18.4", "python": "3.11.7", "date": "2026-11-16"}
OURS = {"steps_whole": 6_000, "runs_whole": 3_000, "idle": 6.0, "limit_1": 2.0, "limit_10": 1.5}
PEER = {"steps_drain": 1_000, "steps_whole": 800, "runs_drain": 500, "idle": 100.0}
PEAKS = {"limit_1": 9.0, "limit_10": 2.5, "limit_100": 1.1, "limit_100_peak": 11}


def rounds():
    """The median of each is the middle one; the third round of the peer failed in part."""
    for factor in (1, 3, 2):
        yield {
            "ours, server + worker": {key: value * factor for key, value in OURS.items()},
            "absurd": {key: value * factor for key, value in {**PEER, **PEAKS}.items()}
            | {"failed": {"idle": "…"}, "took": 3.0},
        }


def test_medians_and_ratios_are_of_the_rounds():
    found = medians(list(rounds()))
    assert found["absurd"]["steps_drain"] == 2_000
    assert "failed" not in found["absurd"]
    # Ours from submit to result against the peer's best case, its drain.
    assert [(each.measure, value) for each, value in goals(found)] == [
        ("steps", 6.0),
        ("runs", 6.0),
    ]


def test_a_ratio_is_judged_by_goal_and_floor():
    more = Goal("steps", "ours", "theirs", "steps", 15, 11)
    assert [more.verdict(value) for value in (15, 12, 10)] == ["met", "floor met", "missed"]
    less = Goal("idle", "ours", "theirs", "idle", 0.9, 1.1)
    assert [less.verdict(value) for value in (0.9, 1.0, 1.2)] == ["met", "floor met", "missed"]


def test_the_table_has_every_measured_contender():
    text = markdown(medians([next(iter(rounds()))]), ABOUT)
    row = next(line for line in text.splitlines() if line.startswith("| absurd "))
    assert "| 1,000 (800) | 6.00 × | 500 (–) | 6.00 × | 100 ms |" in row
    assert "9.00 / 2.50 / 1.10 (up to 11 at once) |" in row
    assert "| **ours, server + worker** | 6,000 |" in text
    assert "dbos" not in text


def test_a_row_has_the_pinned_version_after_the_name():
    text = markdown({"pgqueuer, batch 200": {"steps_drain": 2.0, "steps_whole": 1.0}}, ABOUT)
    version = next(each.version() for each in CONTENDERS if each.environment == "pgqueuer")
    assert f"| pgqueuer {version}, batch 200 | 2.00 (1.00) |" in text


def test_the_table_replaces_what_is_between_markers(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- it: begin -->\nold\n<!-- it: end -->\nafter\n")
    for text in ("new\n", "newer\n"):
        put_between_markers(page, "it", text)
    assert page.read_text() == "before\n<!-- it: begin -->\nnewer\n<!-- it: end -->\nafter\n"


@pytest.mark.parametrize(
    ("page", "name"), [("benchmarks.md", "bench"), ("benchmarks-peers.md", "bench-peers")]
)
def test_the_pages_have_the_markers_of_their_table(page: str, name: str, tmp_path: Path):
    copy = tmp_path / page
    copy.write_text((ROOT / "docs" / page).read_text())
    put_between_markers(copy, name, "the table\n")
    assert copy.read_text().count("the table") == 1


def test_the_picture_is_well_formed_with_a_bar_for_each():
    bars = ET.fromstring(svg(medians(list(rounds())))).findall("{*}rect")
    assert len(bars) == 1 + 2 + 2 + 2 + 2  # the background; steps, runs, idle, the limit


def test_a_record_keeps_the_parts_that_did_not_run(tmp_path: Path):
    path = tmp_path / "record.json"
    first = Record.read(path)
    first.put("engine", [Figure("share", 0.123456789, "×"), Figure("gone since", 1.0, "s")])
    first.put("kernel", [Figure("cost", 25.0, "µs", "≤ 20", met=False)])
    first.write(path)
    again = Record.read(path)
    figure = Figure("share", 0.6, "×", "≥ 0.4", met=True)
    assert "0.600 ×  (recorded 0.123)  (target ≥ 0.4)" in figure.line(again.of("engine", figure))
    assert "recorded" not in figure.line(again.of("worker", figure))
    again.put("engine", [figure, Figure("nobody answered", float("inf"), "×")])
    again.write(path)
    assert Record.read(path).markdown().splitlines()[2:] == [
        "| **engine**: share | 0.6 × | ≥ 0.4 | met |",
        "| **kernel**: cost | 25 µs | ≤ 20 | missed |",
    ]


def test_figures_of_a_part_have_names_of_their_own():
    """By them they are found in the record; names made of values are not looked at here."""
    for path in (ROOT / "bench").glob("*.py"):
        names = re.findall(r"Figure\(\s*\"([^\"]+)\"", path.read_text())
        assert len(names) == len(set(names)), path


@pytest.mark.parametrize("each", CONTENDERS, ids=lambda each: each.name)
def test_an_adapter_can_do_the_whole_workload(each):
    """Read, not imported: a peer is installed in an environment of its own."""
    module = each.adapter.partition(":")[0]
    tree = ast.parse((ROOT / "bench" / "peers" / "adapters" / f"{module}.py").read_text())
    defined = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {"adapter", "open", "submit"} <= defined
    assert {"working", "ended"} <= defined or "done" in defined
    assert each.settings
    if each.environment:
        pinned = (REQUIREMENTS / f"{each.environment}.txt").read_text().split()
        assert all("==" in line for line in pinned)
        assert each.version()


def test_the_workload_is_the_same_for_all():
    assert {f"limit_{each.milliseconds}" for each in FULL.limits} == {
        "limit_1",
        "limit_10",
        "limit_100",
    }
    assert [each.key for each in QUICK.limits] == [each.key for each in FULL.limits]
    for what in Adapter.can:
        assert what in MEASURES or f"{what}_whole" in MEASURES
    small = FULL.scaled(0.001)
    assert small.steps >= 40
    assert all(each.bodies >= 3 * LIMIT for each in small.limits)


def test_only_some_are_measured_with_their_stores_bare_loop():
    assert [each.name for each in chosen(["huey"])] == ["bare SQLite loop", "huey"]
    assert len(chosen([])) == len(CONTENDERS)
    assert chosen(["nobody"]) == []


def test_bodies_say_how_many_ran_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "stamps"
    monkeypatch.setenv(bodies.VARIABLE, str(path))
    stamps = bodies.Stamps(path)
    for sign in "++-+--":
        bodies.say(sign)
    assert len(stamps) == 6
    assert bodies.peak(stamps.said(0)) == 2
    assert len(stamps.said(4)) == 2
