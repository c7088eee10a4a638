"""B12 with real processes: a paused engine loses its lease, and knows it when it resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.leases import KEPT, lapse
from tests.support.stopping import pause_outside_of_a_write

from locktender.testing import Engines, Overlap, eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "engine_steps.py"
steps: Any = load(source(STEPS_FILE))
TIMEOUT = "90s"


@pytest.fixture
def engine_settings() -> dict[str, Any]:
    """Leases that nobody loses by being slow; of one that was stopped they end when a test says so."""
    return KEPT


def test_b12_a_paused_leader_writes_nothing_when_it_wakes_up(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    latch = tmp_path / "latch"
    client = make_engine.connect()
    leader = make_engine.process(STEPS_FILE).ready()
    run = client.submit(steps.chain, str(latch))
    eventually(lambda: "held" in overlap.names())

    pause_outside_of_a_write(leader, make_engine.path)
    second = make_engine.process(STEPS_FILE).ready()
    lapse(str(make_engine.path), leader)
    eventually(lambda: overlap.count("held") == 2)  # taken over
    leader.resume()
    latch.touch()  # both bodies may end now; only one end counts

    assert run.result(TIMEOUT) == 6
    done = [event for event in run.events() if event.after == "completed"]
    assert [event.name for event in done].count("held") == 1
    assert overlap.count("first") == 1
    assert overlap.spans("held")[1].pid == second.pid
    eventually(lambda: "is over" in leader.log() or "lost" in leader.log())
    # and it is of use again
    assert client.submit(steps.many, [1, 2], 0.001).result(TIMEOUT) == [2, 4]


def test_b12_alone_and_paused_it_goes_on_by_itself(
    make_engine: Engines, overlap: Overlap, tmp_path: Path
):
    """Ctrl-Z and fg: nobody took over, and nobody needs to start it again."""
    latch = tmp_path / "latch"
    client = make_engine.connect()
    engine = make_engine.process(STEPS_FILE).ready()
    run = client.submit(steps.hold, str(latch), 3)
    eventually(lambda: "held" in overlap.names())

    pause_outside_of_a_write(engine, make_engine.path)
    lapse(str(make_engine.path), engine)
    assert not client.workers.list()[0].alive
    engine.resume()
    latch.touch()

    assert run.result(TIMEOUT) == 3
    assert overlap.count("held") <= 2
    assert overlap.peak("held") == 1
    assert client.submit(steps.hold, "", 4).result(TIMEOUT) == 4
