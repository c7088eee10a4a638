"""`locktender dev --max-workers N`: its own worker stays, more come when work overflows, and all end with it."""

from __future__ import annotations

from pathlib import Path

import psutil
from tests.support.cli_harness import interrupt, locktender, output_of, started, until

FLOW = """
import os
import time
from pathlib import Path

from locktender import flow, step


@step
def work(x: int) -> int:
    # Until two processes work: whoever starts late is waited for.
    marks = Path(__file__).with_name("marks")
    marks.mkdir(exist_ok=True)
    (marks / str(os.getpid())).touch()
    end = time.monotonic() + 100
    while len(list(marks.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    return os.getpid()


@flow
def many(n: int = 4):
    return work.map(range(n))
"""


def test_more_workers_come_on_overflow_and_end_with_dev(tmp_path: Path) -> None:
    (tmp_path / "elastic.py").write_text(FLOW)
    flags = ["--set", "total_permits=1", "--set", "poll=200ms", "--set", "provision_interval=200ms"]
    with started("dev", "elastic.py", "--plain", "--max-workers", "2", *flags, cwd=tmp_path) as dev:
        until(lambda: "locktender dev elastic.py (elastic:many)" in output_of(dev), "dev to start")
        run = locktender("submit", "elastic.py", "--json", cwd=tmp_path).data["id"]
        until(lambda: f"{run[:12]}  elastic:many  succeeded" in output_of(dev), "the run to end")
        pids = locktender("runs", "show", run, "--json", cwd=tmp_path).data["result"]
        interrupt(dev)
        assert dev.wait(timeout=110) == 130
        assert "Traceback" not in output_of(dev)
    assert len(pids) == 4
    assert dev.pid in pids
    assert 2 <= len(set(pids)) <= 3
    assert not any(psutil.pid_exists(pid) for pid in set(pids))
    assert locktender("audit", cwd=tmp_path).code == 0


def test_a_maximum_that_is_no_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elastic.py").write_text(FLOW)
    said = locktender("dev", "elastic.py", "--max-workers", "-1", cwd=tmp_path)
    assert said.code != 0
    assert "max_workers must be 0 or more" in said.err
