"""Values and files at `blob_url` through whole runs; a value that is missing or was changed holds its run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests.support.s3_server import s3_server

from locktender import RunState, StoredFile, connect, embedded
from locktender.base.config import FOR_BODIES
from locktender.store.stored_files import VARIABLE
from locktender.testing import eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
flows: Any = load(source(Path(__file__).parents[1] / "steps" / "large_steps.py"))
SIZE = 3_000_000
SETTINGS: dict[str, Any] = {"grace": "2s", "max_value": "10MB"}


@pytest.fixture(autouse=True)
def no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FOR_BODIES, VARIABLE, raising=False)


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server("values") as variables:
        yield variables


def test_values_on_s3_and_rows_on_postgres(
    postgres_url: str, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    with embedded(postgres_url, blob_url="s3://values/a", **SETTINGS) as engine:
        assert engine.submit(flows.large, SIZE).result("60s") == SIZE
        assert engine.submit(flows.whole, SIZE).result("60s") == "x" * SIZE
    assert fsspec.filesystem("s3").find("values/a")


def test_a_step_hands_a_file_on(tmp_path: Path):
    """The first runs in a process of its own, the second in a thread; the client saves the result."""
    place = f"file://{tmp_path}/values"
    with embedded(tmp_path / "a.db", blob_url=place, **SETTINGS) as engine:
        found = engine.submit(flows.files, 1_000_000).result("60s")
        assert isinstance(found, StoredFile)
        assert found.size == 6_000_000
        saved = found.save(tmp_path / "saved")
    assert saved.read_bytes() == b"abc" * 2_000_000


@pytest.mark.parametrize("spoilt", ["missing", "changed"])
def test_a_value_that_a_worker_cannot_get_holds_the_run(tmp_path: Path, spoilt: str):
    values = tmp_path / "values"
    latch = tmp_path / "latch"
    with embedded(tmp_path / "a.db", blob_url=f"file://{values}", **SETTINGS) as engine:
        run = engine.submit(flows.large, SIZE, str(latch))
        eventually(lambda: objects(values), "60s", "the value")
        eventually(
            lambda: "completed" in str([task.state for task in run.tasks()]), "60s", "its end"
        )
        [path] = objects(values)
        right = path.read_bytes()
        if spoilt == "missing":
            shutil.move(path, tmp_path / "aside")
        else:
            path.write_bytes(b"other")
        latch.touch()
        eventually(lambda: run.status() == RunState.HELD, "60s", "it to be held")
        says = "no blob" if spoilt == "missing" else "other content"
        assert says in run.why().text()
        eventually(
            lambda: "running" not in str([task.state for task in run.tasks()]), "60s", "its end"
        )
        path.write_bytes(right)
        run.retry()
        assert run.result("60s") == SIZE


def objects(values: Path) -> list[Path]:
    return [path for path in values.glob("??/*/*") if not path.name.startswith(".")]


def test_an_argument_that_the_leader_cannot_get_holds_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    values = tmp_path / "values"
    monkeypatch.setenv(VARIABLE, f"file://{values}")
    monkeypatch.setenv("LOCKTENDER_MAX_VALUE", "10MB")
    with connect(tmp_path / "a.db") as client:
        run = client.submit(flows.whole_of, "y" * SIZE)
    shutil.move(values, tmp_path / "aside")
    with embedded(tmp_path / "a.db", **SETTINGS) as engine:
        found = engine.runs.get(run.id)
        eventually(lambda: found.status() == RunState.HELD, "60s", "it to be held")
        shutil.move(tmp_path / "aside", values)
        found.retry()
        assert found.result("60s") == SIZE
