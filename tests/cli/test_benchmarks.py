"""The harness of `make bench` and `make bench-peers` on fixed numbers: no test judges a time."""
# ruff: noqa: E402 — the benchmarks are found only with the repository's folder in the path

from __future__ import annotations

import ast
import asyncio
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench import bare, measure, report
from bench.peers import __main__ as peers_main
from bench.peers import bodies, drive
from bench.peers.contenders import CONTENDERS, REQUIREMENTS, chosen
from bench.peers.drive import Adapter
from bench.peers.plot import svg
from bench.peers.table import ALL, Goal, goals, markdown, medians
from bench.peers.workload import FULL, LIMIT, MEASURES, QUICK
from bench.report import Figure, Record, put_between_markers, ratios

from locktender.testing import eventually

sys.path.remove(str(ROOT))

ABOUT = {
    "commit": "abc1234",
    "cores": 2,
    "postgres": "18.4",
    "python": "3.11.7",
    "date": "2026-11-16",
}
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
    assert [(each.measure, spread and spread.median) for each, spread in goals(list(rounds()))] == [
        ("steps", 6.0),
        ("runs", 6.0),
    ]


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    """The ratio of the medians would be 3 / 2."""
    found = ratios([(1, 1), (3, 2), (8, 4)])
    assert (found.median, found.low, found.high, found.rounds) == (1.5, 1, 2, 3)
    found = ratios([(1, 4), (3, 1), (5, 2)])
    assert (found.median, found.note) == (2.5, "0.25–3 in 3 rounds")


def test_a_peak_is_the_maximum_of_the_rounds():
    several = [{"absurd": {"limit_1": 1.0, "limit_1_peak": peak}} for peak in (10, 11, 10)]
    assert medians(several)["absurd"]["limit_1_peak"] == 11
    assert "(up to 11 at once)" in markdown(several, ABOUT)


def test_what_failed_stays_in_the_table():
    ours, failed = {"steps_whole": 6_000}, {"failed": {ALL: "no answer | in 240 s"}}
    text = markdown([{"ours, server + worker": ours, "absurd": failed}], ABOUT)
    version = next(each.version() for each in CONTENDERS if each.name == "absurd")
    assert f"| absurd {version} | failed: no answer / in 240 s | | | | | |" in text
    assert "| failed: no round has both values | 15 | 11 | failed |" in text
    assert "- absurd, all, in 1 of 1 rounds: no answer | in 240 s" in text


def test_a_median_of_fewer_rounds_says_of_how_many():
    good = {"ours, server + worker": {"steps_whole": 6_000}, "absurd": PEER}
    bad = good | {"absurd": {"steps_drain": 900, "failed": {"idle": "the body did not start"}}}
    text = markdown([good, bad, good], ABOUT)
    row = next(line for line in text.splitlines() if line.startswith("| absurd "))
    assert "| 100 ms, 2 of 3 rounds |" in row
    row = next(line for line in markdown([bad], ABOUT).splitlines() if line.startswith("| absurd "))
    assert "| failed |" in row
    text = markdown([good, {**good, "absurd": {"failed": {ALL: "…"}}}], ABOUT)
    assert "server + worker ÷ absurd | 6 × (6–6), 1 of 2 rounds |" in text


def test_a_goal_without_a_value_fails_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers_main, "BENCH", tmp_path)
    about = ABOUT | {"seconds": 1}
    assert peers_main.report(list(rounds()), about, write=False) == 0
    failed = {"ours, server + worker": OURS, "absurd": {"failed": {ALL: "…"}}}
    assert peers_main.report([failed], about, write=False) == 1


@pytest.mark.parametrize("other", ["--quick", "--only=absurd"])
def test_a_part_of_the_workload_is_not_written(
    other: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["bench.peers", "--write", other])
    with pytest.raises(SystemExit) as ended:
        peers_main.main()
    assert ended.value.code == 2
    assert "leave out --only and --quick" in capsys.readouterr().err


def test_every_round_is_saved_with_arguments_and_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object, **__: object):
        yield next(iter(rounds())), "18.4"
        raise KeyboardInterrupt

    monkeypatch.setattr(peers_main, "BENCH", tmp_path)
    monkeypatch.setattr(peers_main, "rounds_of", interrupted)
    monkeypatch.setattr(peers_main, "commit", lambda: "abc1234")
    monkeypatch.setattr(sys, "argv", ["bench.peers", "--rounds", "3"])
    with pytest.raises(KeyboardInterrupt):
        peers_main.main()
    kept = json.loads((tmp_path / "peers.json").read_text())
    assert len(kept["rounds"]) == 1
    about = kept["about"]
    assert (about["arguments"], about["commit"], about["rounds"]) == (
        ["--rounds", "3"],
        "abc1234",
        1,
    )


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", "the driver printed no result"),
        ("print('no JSON')", "the driver printed no result"),
        ("raise SystemExit('broken')", "the driver ended with 1: broken"),
    ],
)
def test_a_driver_without_a_result_is_a_recorded_failure(code: str, why: str):
    assert why in peers_main._answer([sys.executable, "-c", code])["failed"][ALL]


def test_what_a_driver_leaves_behind_is_killed():
    code = (
        "import json, subprocess; quiet = subprocess.DEVNULL;"
        "worker = subprocess.Popen(['sleep', '600'], stdout=quiet, stderr=quiet);"
        "print(json.dumps({'worker': worker.pid}))"
    )
    found = peers_main._answer([sys.executable, "-c", code])
    stat = Path(f"/proc/{found['worker']}/stat")

    def ended() -> bool:
        try:
            state = stat.read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state == "Z"  # nobody has reaped it yet

    eventually(ended, 60)


def test_a_driver_that_does_not_answer_is_a_failure():
    found = peers_main._answer(["sleep", "600"], most_seconds=0.0)
    assert found["failed"][ALL] == "no answer in 0 s"


def test_one_failed_measure_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Half(Adapter):
        fills_first = False
        can = frozenset({"steps", "runs"})

        async def done(self, what: str, count: int, seconds: float = 0.0) -> float:
            if what == "steps":
                raise ValueError("no such table")
            return 2.0

    monkeypatch.setenv("BENCH_LOG", str(tmp_path / "log"))
    stamps = bodies.Stamps(tmp_path / "stamps")
    found = asyncio.run(drive.measure(Half(""), QUICK, stamps))
    assert found["failed"] == {"steps": "ValueError: no such table"}
    assert found["runs_whole"] == QUICK.runs / 2


def test_the_question_takes_a_tenth_of_the_time_at_most():
    assert drive.pause_after(0.0) == drive.LOOK_SECONDS
    assert drive.pause_after(0.03) == pytest.approx(0.3)


def test_the_bare_loop_has_one_definition():
    from bench.peers.adapters.bare import BarePostgres, BareSqlite

    assert FULL.steps * BarePostgres.times == bare.POSTGRES_ROWS
    assert FULL.steps * BareSqlite.times == bare.SQLITE_ROWS
    assert bare.sqlite_rate(1_000) > 0


def test_a_ratio_is_judged_by_goal_and_floor():
    more = Goal("steps", "ours", "theirs", "steps", 15, 11)
    assert [more.verdict(value) for value in (15, 12, 10)] == ["met", "floor met", "missed"]
    less = Goal("idle", "ours", "theirs", "idle", 0.9, 1.1)
    assert [less.verdict(value) for value in (0.9, 1.0, 1.2)] == ["met", "floor met", "missed"]


def test_the_table_has_every_measured_contender():
    text = markdown([next(iter(rounds()))], ABOUT)
    row = next(line for line in text.splitlines() if line.startswith("| absurd "))
    assert "| 1,000 (800) | 6.00 × (6–6) | 500 (–) | 6.00 × (6–6) | 100 ms |" in row
    assert "9.00 / 2.50 / 1.10 (up to 11 at once) |" in row
    assert "| **ours, server + worker** | 6,000 |" in text
    assert "dbos" not in text


def test_a_row_has_the_pinned_version_after_the_name():
    text = markdown([{"pgqueuer, batch 200": {"steps_drain": 2.0, "steps_whole": 1.0}}], ABOUT)
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


def test_a_record_keeps_the_parts_that_did_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "today", lambda: "2026-11-18")
    monkeypatch.setattr(report, "commit", lambda: "abc1234")
    path = tmp_path / "record.json"
    first = Record.read(path)
    first.put("engine", [Figure("share", 0.123456789, "×"), Figure("gone since", 1.0, "s")])
    first.put("kernel", [Figure("cost", 25.0, "µs", "≤ 20", met=False)])
    first.write(path)
    again = Record.read(path)
    figure = Figure("share", 0.6, "×", "≥ 0.4", met=True)
    assert "0.600 ×  (recorded 0.123)  (target ≥ 0.4)" in figure.line(again.of("engine", figure))
    assert "recorded" not in figure.line(again.of("worker", figure))
    again.put("engine", [figure, Figure("p99", float("inf"), "×", note="nobody answered")])
    again.write(path)
    assert Record.read(path).markdown().splitlines()[2:] == [
        "| **engine**: 2026-11-18, commit abc1234, as shipped | | | |",
        "| share | 0.6 × | ≥ 0.4 | met |",
        "| p99 | failed: nobody answered |  | failed |",
        "| **kernel**: 2026-11-18, commit abc1234, as shipped | | | |",
        "| cost | 25 µs | ≤ 20 | missed |",
    ]


def test_a_figure_between_goal_and_floor_meets_its_floor():
    more = [Figure.at_least("share", value, "×", 0.36, 0.28) for value in (0.4, 0.3, 0.2)]
    less = [Figure.at_most("cost", value, "%", 1, 3) for value in (1, 2, 4)]
    for figures in (more, less):
        assert [each.verdict for each in figures] == ["met", "floor met", "missed"]
    assert "floor 0.28" in more[0].target
    assert more[1].line().startswith("FLOOR ")


def test_a_part_is_saved_before_the_next_one(monkeypatch: pytest.MonkeyPatch):
    saved: list[list[str]] = []

    def broken() -> list[Figure]:
        raise RuntimeError("no server")

    parts = {
        "first": lambda: [Figure("cost", 25.0, "µs")],
        "broken": broken,
        "last": lambda: [Figure("share", float("nan"), "×", "≥ 1", met=False)],
    }
    monkeypatch.setattr(measure, "save", lambda record: saved.append(list(record.parts)))
    monkeypatch.setattr(measure.Record, "read", classmethod(lambda cls: cls()))
    assert measure.measure(parts, ["first"], keep=True) == 0
    assert measure.measure(parts, ["first", "broken", "last"], keep=True) == 1
    assert saved == [["first"], ["first"], ["first", "last"]]
    assert measure.measure(parts, ["last"], keep=False) == 1


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
