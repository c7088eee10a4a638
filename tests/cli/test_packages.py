"""Flows in a package's own `__init__.py`, named as Python names it, from the folder that the package lies in."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_harness import environment, locktender, output_of, started, until

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

PACKAGE = """
import os
import time
from pathlib import Path

from locktender import flow, step


def meet(processes: int) -> int:
    #Waits until bodies run in so many processes: those that come late are waited for.
    marks = Path(__file__).with_name("marks")
    marks.mkdir(exist_ok=True)
    (marks / str(os.getpid())).touch()
    end = time.monotonic() + 100
    while len(list(marks.iterdir())) < processes and time.monotonic() < end:
        time.sleep(0.01)
    return os.getpid()


@step
def work(x: int, processes: int) -> int:
    return meet(processes)


@flow
def many(n: int = 2, processes: int = 1):
    return work.map(range(n), processes=processes)
"""
MAIN = """
import json

from shop import many

from locktender import embedded

OPTIONS = {"thread_permits": 1, "provision_interval": "100ms", "provisioned_idle_exit": "1s"}

if __name__ == "__main__":
    with embedded("locktender.db", max_workers=1, **OPTIONS) as engine:
        print(json.dumps(engine.submit(many, 3, 2).result("100s")))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a package, which has the name of the folder's one directory."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "shop" / "main.py").write_text(MAIN)
    return tmp_path


@pytest.mark.parametrize("name", ["shop:many", "shop"])
def test_run_takes_a_package_by_its_name(project: Path, name: str):
    done = locktender("run", name, "--json", cwd=project)

    assert done.code == 0, done.err


def announced(worker: subprocess.Popen[str]) -> Any:
    """What it says of itself as JSON; lines of its log may come before."""
    lines = output_of(worker).split("\n")[:-1]
    return next((json.loads(line) for line in lines if line.startswith("{")), None)


def test_a_worker_serves_a_package(project: Path):
    with started("worker", "--app", "shop", "--lead", "--json", cwd=project) as worker:
        assert until(lambda: announced(worker), "its announcement")["steps"] == ["shop:work"]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0


def test_a_module_is_meant_where_a_file_has_its_name(project: Path):
    (project / "stall").write_text("no Python at all(")
    (project / "stall.py").write_text(PACKAGE)

    with started("worker", "--app", "stall", "--lead", "--json", cwd=project) as worker:
        assert until(lambda: announced(worker), "its announcement")["steps"] == ["stall:work"]


def test_a_program_starts_workers_for_the_steps_of_its_package(project: Path):
    done = subprocess.run(
        [sys.executable, "-m", "shop.main"],
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert len(set(json.loads(done.stdout))) == 2
