"""B4, B14, E1, E2 with real bodies: which runs are accepted, and which may start."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from locktender import (
    AdmissionRejected,
    Client,
    InvalidInput,
    InvalidSettings,
    Run,
    RunState,
    embedded,
)
from locktender.leader import queue_reader
from locktender.observe.checker import Rejection
from locktender.testing import Engines, Overlap, check_history, eventually, load_history
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]

steps: Any = load(source(Path(__file__).parents[1] / "steps" / "engine_steps.py"))
TIMEOUT = "60s"


def ended(runs: list[Run[Any]]) -> set[RunState]:
    return {run.wait(TIMEOUT) for run in runs}


# -- the ceiling -----------------------------------------------------------------------------------


def test_b4_the_sixteenth_is_rejected_and_leaves_no_row(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine(max_active=15, max_concurrent_runs=4)
    latch = tmp_path / "latch"
    runs = [engine.submit(steps.hold, str(latch), n, key=f"key-{n}") for n in range(15)]
    eventually(lambda: overlap.count("held") == 4)

    with pytest.raises(AdmissionRejected, match="15 of 15") as caught:
        engine.submit(steps.hold, str(latch), 16)

    seq = load_history(engine).events[-1].seq
    assert caught.value.retry_after > 0
    assert caught.value.field == "max_active"
    # nothing was stored
    assert len(engine.runs.list(limit=1_000)) == 15
    check_history(engine, rejections=[Rejection("max_active", 15, 15, seq)])
    # a key that is active attaches, for queued and for running runs alike
    for n in (0, 14):
        assert engine.submit(steps.hold, str(latch), n, key=f"key-{n}").id == runs[n].id
    # reads are never rejected
    assert {run.status() for run in runs} == {RunState.RUNNING, RunState.QUEUED}
    assert "4 of 4 runs execute" in str(runs[14].why())
    assert len(engine.queue.list()) == 11
    assert engine.pools.list() == []
    # and the first that ends makes room
    latch.touch()
    assert ended(runs) == {RunState.SUCCEEDED}
    assert engine.submit(steps.hold, str(latch), 16).result(TIMEOUT) == 16
    assert overlap.count("held") == 16
    assert overlap.peak("held") <= 4


def test_b4_of_many_all_or_as_many_as_there_is_room_for(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine(max_active=5)
    latch = tmp_path / "latch"
    calls = [(str(latch), n) for n in range(8)]

    with pytest.raises(AdmissionRejected):
        engine.submit_many(steps.hold, calls)
    assert engine.runs.list() == []

    answers = engine.submit_many(steps.hold, calls, partial=True)
    taken = [each for each in answers if isinstance(each, Run)]
    assert [isinstance(each, AdmissionRejected) for each in answers] == [False] * 5 + [True] * 3
    latch.touch()
    assert ended(taken) == {RunState.SUCCEEDED}
    assert overlap.count("held") == 5


def test_b4_a_ceiling_for_each_value_of_a_tag(make_engine: Engines, tmp_path: Path):
    engine = make_engine()
    engine.limits.set_tag("tenant", per_value=True, max_active=2)
    latch = tmp_path / "latch"
    runs = [engine.submit(steps.hold, str(latch), tags={"tenant": "a"}) for _ in range(2)]

    with pytest.raises(AdmissionRejected):
        engine.submit(steps.hold, str(latch), tags={"tenant": "a"})
    runs += [
        engine.submit(steps.hold, str(latch), tags={"tenant": "b"}),
        engine.submit(steps.hold, str(latch)),
    ]

    latch.touch()
    assert ended(runs) == {RunState.SUCCEEDED}
    assert len(engine.runs.list()) == 4


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"worker_lease": "2s", "heartbeat": "1s"}, ["worker_lease", "heartbeat"]),
        ({"leader_lease": "1s", "leader_renew": "1s"}, ["leader_lease", "leader_renew"]),
        ({"blob_over": 3_000_000}, ["blob_over", "max_value"]),
        ({"labels": {"gpu": ["a100"]}, "worker_labels": {"gpu": "h100"}}, ["worker_labels", "labels"]),
        (
            {"worker_lease": "1s", "leader_lease": "1s"},
            ["worker_lease", "heartbeat", "leader_lease", "leader_renew"],
        ),
    ],
)  # fmt: skip
def test_b14_settings_are_judged_together(
    tmp_path: Path, settings: dict[str, Any], named: list[str]
):
    with pytest.raises(InvalidSettings) as caught:
        embedded(tmp_path / "locktender.db", **settings)

    assert [name for name in named if name not in str(caught.value)] == []
    assert list(tmp_path.iterdir()) == []  # nothing was made


# -- the run gate ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "peak"), [(1, 1), (3, 3), (-1, 12)])
def test_e1_runs_executing_at_once(
    make_engine: Engines, overlap: Overlap, tmp_path: Path, limit: int, peak: int
):
    engine = make_engine(max_concurrent_runs=limit)
    latch = tmp_path / "latch"
    runs = [engine.submit(steps.hold, str(latch), n) for n in range(12)]
    eventually(lambda: overlap.count("held") == peak)
    assert len(engine.runs.list(status="running")) == peak

    latch.touch()

    assert ended(runs) == {RunState.SUCCEEDED}
    assert overlap.peak("held") == peak
    assert overlap.labels("held") == [str(n) for n in range(12)]  # by age


def test_e1_zero_is_refused_in_favour_of_pause(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine()
    with pytest.raises(InvalidInput, match="pause"):
        engine.limits.set_max_concurrent_runs(0)
    with pytest.raises(InvalidInput, match="max_concurrent_runs"):
        make_engine(max_concurrent_runs=0)
    (tmp_path / "open").touch()

    engine.limits.pause()
    run = engine.submit(steps.hold, str(tmp_path / "open"))
    assert "paused" in str(run.why())
    assert overlap.names() == []
    engine.limits.resume()

    assert run.result(TIMEOUT) == 0


def test_e1_the_gate_is_moved_while_runs_wait(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine(max_concurrent_runs=1)
    gates = [tmp_path / str(n) for n in range(8)]
    runs = [engine.submit(steps.hold, str(gate), n) for n, gate in enumerate(gates)]
    eventually(lambda: overlap.count("held") == 1)

    engine.limits.set_max_concurrent_runs(4)
    eventually(lambda: overlap.count("held") == 4)
    engine.limits.set_max_concurrent_runs(2)
    gates[0].touch()
    gates[1].touch()
    assert ended(runs[:2]) == {RunState.SUCCEEDED}
    assert overlap.count("held") == 4  # two still hold the two that are left
    gates[2].touch()
    eventually(lambda: overlap.count("held") == 5)

    for gate in gates:
        gate.touch()
    assert ended(runs) == {RunState.SUCCEEDED}
    assert overlap.peak("held") == 4


# -- tags ------------------------------------------------------------------------------------------


def submitter(engine: Client, latch: Path) -> Callable[..., Run[Any]]:
    def submit(item: int, priority: int = 0, **tags: str) -> Run[Any]:
        return engine.submit(steps.hold, str(latch), item, tags=tags, priority=priority)

    return submit


def test_e2_blocked_runs_are_skipped_and_others_overtake(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    """Key, key=value and per value at once; runs without the tag are not concerned."""
    engine = make_engine(max_concurrent_runs=-1)
    engine.limits.set_tag("tenant", limit=4)
    engine.limits.set_tag("tenant", per_value=True, limit=2)
    engine.limits.set_tag("tier", "free", limit=1)
    latch = tmp_path / "latch"
    submit = submitter(engine, latch)
    runs = [submit(n, tenant="a") for n in range(4)]  # 0 1 go, 2 3 wait
    runs += [submit(n, tenant="b", tier="free") for n in (10, 11)]  # 10 goes, 11 waits
    runs += [submit(20, tenant="c")]  # goes: four with a tenant now
    runs += [submit(30, tenant="d")]  # waits for the key as such
    runs += [submit(n) for n in (40, 41)]  # no tag: not concerned
    runs += [submit(50, tier="paid"), submit(51, tier="free")]  # 50 goes, 51 waits for 10

    eventually(lambda: overlap.count("held") == 7)
    assert overlap.labels("held") == ["0", "1", "10", "20", "40", "41", "50"]
    assert len(engine.queue.list()) == 5
    reasons = {reason.gate for reason in runs[2].why().reasons}
    assert {"tag:tenant", "tag:tenant=*a"} <= reasons
    assert {r.gate for r in runs[-1].why().reasons} == {"tag:tier=free"}

    latch.touch()
    assert ended(runs) == {RunState.SUCCEEDED}
    assert overlap.count("held") == 12


def test_e2_priority_then_age(make_engine: Engines, overlap: Overlap, tmp_path: Path):
    engine = make_engine(max_concurrent_runs=1)
    latch, later = tmp_path / "latch", tmp_path / "later"
    later.touch()
    first = submitter(engine, latch)(0)
    eventually(lambda: overlap.count("held") == 1)
    submit = submitter(engine, later)
    runs = [
        submit(1),
        submit(2, priority=5),
        submit(3),
        submit(4, priority=5),
        submit(5, priority=-1),
    ]
    last = runs[2]
    assert [entry.position for entry in engine.queue.list()] == [1, 2, 3, 4, 5]
    engine.queue.reprioritise(last, 9)

    eventually(lambda: engine.queue.list()[0].run.id == last.id)
    latch.touch()

    assert ended([first, *runs]) == {RunState.SUCCEEDED}
    assert overlap.labels("held") == ["0", "3", "2", "4", "1", "5"]
    assert overlap.peak("held") == 1


def test_e2_a_run_beyond_the_heads_comes_to_the_front(
    make_engine: Engines, overlap: Overlap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A leader holds the first runs of a lane. The one that is moved before them is read after that."""
    monkeypatch.setattr(queue_reader, "MAX_HEADS_PER_LANE", 2)
    engine = make_engine(max_concurrent_runs=1)
    latch, later = tmp_path / "latch", tmp_path / "later"
    later.touch()
    first = submitter(engine, latch)(0)
    eventually(lambda: overlap.count("held") == 1)
    submit = submitter(engine, later)
    runs = [submit(number) for number in range(1, 8)]
    engine.queue.reprioritise(runs[-1], 9)
    eventually(lambda: engine.queue.list()[0].run.id == runs[-1].id)
    latch.touch()

    assert ended([first, *runs]) == {RunState.SUCCEEDED}
    assert overlap.labels("held") == ["0", "7", "1", "2", "3", "4", "5", "6"]


def test_e2_each_value_has_a_peak_of_its_own(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    engine = make_engine(max_concurrent_runs=-1)
    engine.limits.set_tag("tenant", per_value=True, limit=1)
    runs = [
        engine.submit(steps.many, [n], 0.003, tags={"tenant": str(n % 3)}, key=f"{n}")
        for n in range(12)
    ]

    assert ended(runs) == {RunState.SUCCEEDED}

    assert overlap.peak("work") <= 3
    for tenant in range(3):
        mine = [s for s in overlap.spans("work") if int(s.label) % 3 == tenant]
        assert len(mine) == 4
        for before, after in pairwise(mine):
            assert before.ended_us is not None
            assert before.ended_us <= after.began_us
