"""B13: attempts never share a work directory, none is left behind, nothing else is ever removed."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from locktender.base.errors import InvalidSettings, NotFound
from locktender.worker.executors import sources, workdirs
from locktender.worker.executors.protocol import Attempt
from locktender.worker.executors.workdirs import WorkRoot

KILLED = """
import os, sys
from pathlib import Path
from locktender.worker.executors import workdirs
root = workdirs.WorkRoot(Path(sys.argv[1]))
workdirs.create(root.path, 1, 2)
print(root.path, flush=True)
os._exit(0)
"""


@pytest.fixture(autouse=True)
def _sweeps_end(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """A worker waits a moment for its sweep, and goes on; these tests look at what it has done."""
    monkeypatch.setattr(workdirs, "SWEEP_SECONDS", 60.0)


def killed_worker(base: Path) -> Path:
    """The root of a worker that ended in the middle of a body."""
    command = [sys.executable, "-c", KILLED, str(base)]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def everything_in(folder: Path) -> dict[str, str]:
    """Each entry with what it is and holds, no link followed."""

    def told(path: Path) -> str:
        if path.is_symlink():
            return f"link to {path.readlink()}"
        return "directory" if path.is_dir() else path.read_text()

    return {str(path.relative_to(folder)): told(path) for path in folder.rglob("*")}


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
    assert "failed to remove" in caplog.text


MOUNTS = ["unshare", "--map-root-user", "--mount", "--"]
"""A process that may mount, and whose mounts nobody else sees."""
MOUNTED = """
set -e
mkdir -p "$1/1/1/disk" "$1/1/1/deep/precious"
touch "$1/1/1/own"
mount -t tmpfs none "$1/1/1/disk"
mount --bind "$2" "$1/1/1/deep/precious"
touch "$1/1/1/disk/file"
"$3" -c 'import sys; from pathlib import Path; from locktender.worker.executors import workdirs
workdirs.remove(Path(sys.argv[1]), 1, 1)' "$1"
ls "$1/1/1" "$1/1/1/disk"
"""


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*MOUNTS, "true"], capture_output=True, check=False).returncode != 0,
    reason="nothing can be mounted here",
)
def test_what_is_mounted_inside_is_not_ours(tmp_path: Path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "precious").write_text("x")

    command = [
        *MOUNTS,
        "sh",
        "-c",
        MOUNTED,
        "sh",
        str(tmp_path / "root"),
        str(mine),
        sys.executable,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)

    assert (mine / "precious").read_text() == "x"
    assert "something is mounted there" in ended.stderr
    assert "file" in ended.stdout.split()
    assert "own" not in ended.stdout.split()


def test_each_worker_has_a_root_of_its_own(tmp_path: Path):
    with WorkRoot(tmp_path) as one, WorkRoot(tmp_path) as other:
        assert one.path != other.path
        workdirs.create(one.path, 1, 1)
        with WorkRoot(tmp_path):
            assert workdirs.exists(one.path, 1, 1)

    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_dead_owners_are_swept_at_start(tmp_path: Path):
    left = killed_worker(tmp_path)
    assert workdirs.exists(left, 1, 2)

    with WorkRoot(tmp_path) as root:
        assert list(root.path.iterdir()) == []
        assert not left.exists()

    assert list(tmp_path.iterdir()) == []


def test_what_somebody_else_made_is_never_removed(tmp_path: Path):
    """Whatever it is called: only what lies beside a lock that we wrote is ours."""
    work, outside = tmp_path / "work", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    work.mkdir()
    hexes = "0123456789abcdef"
    for folder in ("2024", "0", "12x", "notes", "locktender-7", f"locktender-{hexes}"):
        (work / folder).mkdir()
        (work / folder / "report.txt").write_text("precious")
    for file in ("7", "0.lock", "8.lock", "locktender-7.lock", f"locktender-{hexes}.lock"):
        (work / file).write_text("precious")
    (work / "locktender-1111111111111111").mkdir()
    (work / "locktender-1111111111111111.lock").touch()
    (work / "9").symlink_to(outside)
    (work / "locktender-2222222222222222").symlink_to(outside)
    (work / "locktender-2222222222222222.lock").symlink_to(outside / "precious")
    before = everything_in(tmp_path)

    for _ in range(2):
        with WorkRoot(work) as root:
            workdirs.create(root.path, 1, 1)
        killed_worker(work)
    with WorkRoot(work):
        pass

    assert everything_in(tmp_path) == before


def test_a_link_in_place_of_a_dead_owners_tree_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    outside = tmp_path / "outside"
    (outside / "1").mkdir(parents=True)
    left = killed_worker(tmp_path / "work")
    shutil.rmtree(left)
    left.symlink_to(outside)

    with caplog.at_level(logging.WARNING), WorkRoot(tmp_path / "work"):
        pass

    assert (outside / "1").exists()
    assert left.is_symlink()
    assert "failed to remove" in caplog.text


@pytest.mark.parametrize(
    ("host", "boot", "swept"),
    [
        ("elsewhere", "another", False),  # where its locks may be none that we see
        ("elsewhere", None, True),  # another container of this machine
        (None, "another", True),  # this machine before it was started again
    ],
)
def test_only_this_machines_leftovers_are_swept(
    tmp_path: Path, host: str | None, boot: str | None, swept: bool
):
    if not workdirs._BOOT_ID.exists() and boot is None:
        pytest.skip("only Linux says which start of the machine this is")
    left = killed_worker(tmp_path)
    lock = left.with_name(f"{left.name}.lock")
    kind, *ours = lock.read_text().splitlines()
    lock.write_text("\n".join([kind, host or ours[0], boot or ours[1]]) + "\n")

    with WorkRoot(tmp_path):
        assert left.exists() != swept


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


def test_what_a_child_makes_after_its_worker_has_closed_is_swept(tmp_path: Path):
    root = WorkRoot(tmp_path)
    inherited = os.dup(root.lock_fd)
    root.close()
    workdirs.create(root.path, 1, 1)
    os.close(inherited)

    with WorkRoot(tmp_path):
        assert not root.path.exists()


def test_the_tree_of_a_dead_worker_is_removed_with_its_lock(tmp_path: Path):
    killed_worker(tmp_path)
    (tmp_path / "notes").mkdir()

    with WorkRoot(tmp_path):
        pass

    assert [each.name for each in tmp_path.iterdir()] == ["notes"]


def test_what_is_emptied_at_the_very_end_is_still_held(tmp_path: Path):
    root = WorkRoot(tmp_path)
    workdirs.create(root.path, 1, 1)
    root.empty(5.0)
    assert not root.path.exists()

    late = workdirs.create(root.path, 1, 2)  # a body that goes on until the process is gone
    with WorkRoot(tmp_path):
        assert late.exists()
    os.close(root.lock_fd)
    with WorkRoot(tmp_path):
        assert not late.exists()


def test_a_work_dir_that_cannot_be_one_is_named(tmp_path: Path):
    (tmp_path / "afile").touch()

    places = [
        (tmp_path / "afile", "is not a directory"),
        (tmp_path / "afile" / "sub", "cannot be used: Not a directory"),
    ]
    if Path("/proc").exists():
        places.append((Path("/proc/nope"), "cannot be used: No such file or directory"))
    for path, words in places:
        with pytest.raises(InvalidSettings, match=words) as caught:
            WorkRoot(path)
        assert caught.value.field == "work_dir"
        assert caught.value.message.startswith(f"work_dir {path} ")
        assert caught.value.hint is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_work_dir_without_rights_is_named(tmp_path: Path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InvalidSettings, match="cannot be used: Permission denied"):
            WorkRoot(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_job_makes_its_directory_only_when_asked(tmp_path: Path):
    step = object()
    job = Attempt(1, 2, "run", step, b"", work_root=tmp_path)  # pyright: ignore[reportArgumentType]

    assert not job.has_workdir
    assert job.workdir == job.workdir == tmp_path / "1" / "2"
    assert job.workdir.is_dir()
    with pytest.raises(NotFound, match="work_dir"):
        _ = Attempt(1, 2, "run", step, b"").workdir  # pyright: ignore[reportArgumentType]


def test_sources_of_a_module_and_of_a_function_without_a_file():
    found = sources.source_of(sources.load)

    assert found.module == "locktender.worker.executors.sources"
    assert sources.load(found) is sys.modules[found.module]


def test_a_file_is_loaded_by_path_where_its_name_leads_elsewhere(tmp_path: Path):
    path = tmp_path / "colorsys.py"
    path.write_text("VALUE = 5\n")

    module = sources.load(sources.CodeSource("colorsys", str(path)))
    try:
        assert module.VALUE == 5
        assert sources.load(sources.CodeSource("colorsys", str(path))) is module
    finally:
        del sys.modules["colorsys"]


def test_a_module_that_fails_to_load_is_not_kept(tmp_path: Path):
    path = tmp_path / "broken_flow_file.py"
    path.write_text("1 / 0\n")

    with pytest.raises(ZeroDivisionError):
        sources.load(sources.CodeSource("broken_flow_file", str(path)))

    assert "broken_flow_file" not in sys.modules
