"""The folder of the work directories: nothing of the user's is touched in it, and a wrong one is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cli_harness import FLOWS, locktender
from tests.support.portable import only_linux

from locktender import embedded
from locktender.store.open import settings_for


def precious(folder: Path) -> Path:
    (folder / "2024").mkdir(parents=True)
    (folder / "2024" / "report.txt").write_text("precious")
    (folder / "7").write_text("precious")
    return folder


def is_untouched(folder: Path) -> bool:
    names = sorted(each.name for each in folder.iterdir())
    return names == ["2024", "7"] and (folder / "2024" / "report.txt").read_text() == "precious"


def test_beside_a_file_it_is_named_after_it(tmp_path: Path) -> None:
    work = precious(tmp_path / "work")

    with embedded(tmp_path / "app.db") as engine:
        assert engine.settings.work_dir == str(tmp_path / "app.db-work")

    assert is_untouched(work)
    assert list((tmp_path / "app.db-work").iterdir()) == []
    assert settings_for("./a/b.db", {}).work_dir == "a/b.db-work"
    assert settings_for("a.db", {"work_dir": "scratch"}).work_dir == "scratch"
    assert settings_for("postgresql://h/d", {}).work_dir == ".locktender/work"


def test_files_of_the_users_own_in_it_stay(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(FLOWS)
    work = precious(tmp_path / "scratch")

    answer = locktender("run", "flows.py:build", cwd=tmp_path, LOCKTENDER_WORK_DIR="scratch")

    assert answer.code == 0, answer.err
    assert is_untouched(work)


@pytest.mark.parametrize(
    ("work_dir", "said"),
    [
        ("flows.py", "work_dir flows.py is not a directory."),
        ("flows.py/sub", "work_dir flows.py/sub cannot be used: Not a directory."),
        pytest.param(
            *("/proc/nope", "work_dir /proc/nope cannot be used: No such file or directory."),
            marks=only_linux("a place like /proc, where no folder can be made"),
        ),
    ],
)
def test_one_that_cannot_be_used_is_named(tmp_path: Path, work_dir: str, said: str) -> None:
    (tmp_path / "flows.py").write_text(FLOWS)

    answer = locktender("run", "flows.py:build", "--set", f"work_dir={work_dir}", cwd=tmp_path)

    assert answer.code != 0
    assert f"error: {said}" in answer.err
    assert "hint: Set it to a directory" in answer.err
