"""B13: the work directory of a body that ends only with its process is gone with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster

from locktender.testing import eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
FILE = Path(__file__).parents[1] / "steps" / "work_left_steps.py"
steps: Any = load(source(FILE))


def test_b13_a_thread_past_its_grace_leaves_no_work_directory(
    cluster: Cluster, tmp_path: Path
) -> None:
    work, where = tmp_path / "work", tmp_path / "where"
    (work / "2024").mkdir(parents=True)
    cluster.server().ready()
    worker = cluster.worker(FILE, grace="300ms").ready()
    cluster.client().submit(steps.scribbling, str(tmp_path))
    eventually(lambda: where.exists() and any(Path(where.read_text()).glob("file-*")))
    assert Path(where.read_text()).is_relative_to(work)

    worker.terminate()
    assert worker.wait() == 75

    # Nobody else has started here who would have swept it.
    eventually(lambda: [each.name for each in work.iterdir() if each.is_dir()] == ["2024"])
