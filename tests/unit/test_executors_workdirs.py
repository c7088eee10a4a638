"""B13: attempts never share a work directory, none is left behind, nothing else is ever removed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.base.errors import NotFound
from headgate.stages.executors import sources, workdirs
from headgate.stages.executors.protocol import Job
from headgate.stages.executors.workdirs import WorkRoot


def test_made_on_first_use_and_removed_with_its_task(tmp_path: Path):
    with WorkRoot(tmp_path) as root:
        assert list(root.path.iterdir()) == []

        path = workdirs.create(root.path, 7, 1)
        (path / "deep" / "er").mkdir(parents=True)
        (path / "deep" / "file").write_text("x")
        workdirs.remove(root.path, 7, 1)

        assert list(root.path.iterdir()) == []


def test_another_attempt_of_the_task_keeps_its_own(tmp_path: Path):
    with WorkRoot(tmp_path) as root:
        workdirs.create(root.path, 7, 1)
        second = workdirs.create(root.path, 7, 2)
        workdirs.remove(root.path, 7, 1)

        assert second.is_dir()
        assert not workdirs.exists(root.path, 7, 1)


def test_removing_what_is_not_there_is_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    workdirs.remove(tmp_path, 1, 1)
    workdirs.remove(tmp_path / "missing", 1, 1)

    assert caplog.text == ""


def test_directories_without_rights_are_removed(tmp_path: Path):
    path = workdirs.create(tmp_path, 1, 1)
    (path / "closed").mkdir()
    (path / "closed" / "file").write_text("x")
    (path / "closed").chmod(0)

    workdirs.remove(tmp_path, 1, 1)

    assert not path.exists()


def test_links_are_never_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    outside = tmp_path / "outside"
    (outside / "1").mkdir(parents=True)
    (outside / "1" / "precious").write_text("x")
    root = tmp_path / "root"
    inside = workdirs.create(root, 5, 5)

    (inside / "link").symlink_to(outside)  # inside an attempt's directory
    workdirs.remove(root, 5, 5)
    (root / "6").symlink_to(outside)  # in place of a task's directory
    with caplog.at_level(logging.WARNING):
        workdirs.remove(root, 6, 1)
    (root / "7").mkdir()
    (root / "7" / "1").symlink_to(outside)  # in place of an attempt's own
    workdirs.remove(root, 7, 1)

    assert (outside / "1" / "precious").exists()
    assert not (root / "5").exists()
    assert not (root / "7").exists()
    assert "not removed" in caplog.text


def test_each_worker_has_a_root_of_its_own(tmp_path: Path):
    with WorkRoot(tmp_path) as one, WorkRoot(tmp_path) as other:
        assert one.path != other.path
        workdirs.create(one.path, 1, 1)
        with WorkRoot(tmp_path):
            assert workdirs.exists(one.path, 1, 1)

    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_dead_owners_are_swept_at_start(tmp_path: Path):
    code = """
import os, sys
from pathlib import Path
from headgate.stages.executors import workdirs
root = workdirs.WorkRoot(Path(sys.argv[1]))
workdirs.create(root.path, 1, 2)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert workdirs.exists(tmp_path / "0", 1, 2)
    (tmp_path / "notes").mkdir()
    (tmp_path / "12x").mkdir()

    with WorkRoot(tmp_path) as root:
        assert list(root.path.iterdir()) == []

    assert sorted(each.name for each in tmp_path.iterdir()) == ["12x", "notes"]


def test_a_child_that_still_lives_keeps_the_tree(tmp_path: Path):
    root = WorkRoot(tmp_path)
    inherited = os.dup(root.lock_fd)  # as a child process holds it
    kept = root.path
    os.close(root.lock_fd)  # the worker itself is gone
    workdirs.create(kept, 1, 1)

    with WorkRoot(tmp_path) as other:
        assert other.path != kept
        assert workdirs.exists(kept, 1, 1)

    os.close(inherited)
    with WorkRoot(tmp_path):
        assert not workdirs.exists(kept, 1, 1)


def test_a_job_makes_its_directory_only_when_asked(tmp_path: Path):
    step = object()
    job = Job(1, 2, "run", step, b"", work_root=tmp_path)  # pyright: ignore[reportArgumentType]

    assert not job.has_workdir
    assert job.workdir == job.workdir == tmp_path / "1" / "2"
    assert job.workdir.is_dir()
    with pytest.raises(NotFound, match="work_dir"):
        _ = Job(1, 2, "run", step, b"").workdir  # pyright: ignore[reportArgumentType]


def test_sources_of_a_module_and_of_a_function_without_a_file():
    found = sources.source_of(sources.load)

    assert found.module == "headgate.stages.executors.sources"
    assert sources.load(found) is sys.modules[found.module]


def test_a_file_is_loaded_by_path_where_its_name_leads_elsewhere(tmp_path: Path):
    path = tmp_path / "colorsys.py"
    path.write_text("VALUE = 5\n")

    module = sources.load(sources.Source("colorsys", str(path)))
    try:
        assert module.VALUE == 5
        assert sources.load(sources.Source("colorsys", str(path))) is module
    finally:
        del sys.modules["colorsys"]


def test_a_module_that_fails_to_load_is_not_kept(tmp_path: Path):
    path = tmp_path / "broken_flow_file.py"
    path.write_text("1 / 0\n")

    with pytest.raises(ZeroDivisionError):
        sources.load(sources.Source("broken_flow_file", str(path)))

    assert "broken_flow_file" not in sys.modules
