"""A worker process may open as many files as its bodies need; child processes keep the bound of the start."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cluster import Cluster
from tests.support.portable import only_linux

from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

FEW = 256
STARTED_WITH_FEW = (
    "-c",
    (
        "import resource; from locktender.__main__ import start; "
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE); "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW}, hard)); start()"
    ),
)
STEPS = """
import resource
from locktender import flow, step

AT_IMPORT = resource.getrlimit(resource.RLIMIT_NOFILE)

@step
async def on_loop() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)

@step(executor="process")
def in_process() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)

@step(executor="process")
def at_import() -> tuple[int, int]:
    return AT_IMPORT

@flow
def bounds() -> list[tuple[int, int]]:
    return [on_loop(), in_process(), at_import()]
"""


@only_linux("a bound of open files that every process may raise")
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_worker_raises_its_bound_of_open_files_for_itself_only(cluster: Cluster, tmp_path: Path):
    file = tmp_path / "bounded_steps.py"
    file.write_text(STEPS)
    cluster.worker(file, lead=True, program=STARTED_WITH_FEW).ready()
    bounds = load(source(file)).bounds

    (soft, hard), *of_children = cluster.client().submit(bounds).result("90s")

    assert soft == min(hard, 65_536)
    assert soft > FEW
    assert of_children == [(FEW, hard), (FEW, hard)]
