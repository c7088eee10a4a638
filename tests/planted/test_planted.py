"""The checker bites: bugs planted on purpose, one at a time, are each found by its rules.

A bug is a small exchange of text in a copy of the package, kept in `bugs/`:
`file`, `old` (must occur exactly once), `new`, and the rules of which one must speak.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import locktender
from locktender.observe.checker import RULES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = Path(locktender.__file__).parent
BUGS = {path.stem: path for path in sorted((HERE / "bugs").glob("*.toml"))}
SEEDS = 60
LAYERS = ("base", "kernel", "store", "observe", "simulate")


@cache
def bug(name: str) -> dict[str, Any]:
    return tomllib.loads(BUGS[name].read_text(encoding="utf-8"))


def plant(bug: dict[str, Any], package: Path) -> None:
    """Exchange the text; loudly, if the code has moved on and the bug no longer fits."""
    path = package / bug["file"]
    text = path.read_text(encoding="utf-8")
    found = text.count(bug["old"])
    if found != 1:
        raise ValueError(
            f"{bug['file']} has the text of this planted bug {found} times, not once: rewrite the bug."
        )
    write(path, text.replace(bug["old"], bug["new"]))


def write(path: Path, text: str) -> None:
    """Whatever was compiled of it before is gone."""
    path.write_text(text, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def copy_of_package(folder: Path) -> Path:
    package = folder / "locktender"
    package.mkdir()
    # The public names import everything; a world needs the lower layers only.
    (package / "__init__.py").write_text("", encoding="utf-8")
    for layer in LAYERS:
        # With what is compiled of it: only the file with the bug is compiled anew.
        shutil.copytree(PACKAGE / layer, package / layer)
    return package


def hunt(folder: Path, *wanted: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / "hunt.py"), str(SEEDS), *wanted],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_there_are_at_least_ten_and_each_names_rules_that_exist():
    known = {rule.id for rule in RULES}
    assert len(BUGS) >= 10
    for name in BUGS:
        assert bug(name)["expect"], name
        assert set(bug(name)["expect"]) <= known, name
        assert bug(name)["old"] != bug(name)["new"], name


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, tmp_path: Path):
    package = copy_of_package(tmp_path)
    plant(bug(name), package)
    found = hunt(tmp_path, *bug(name)["expect"])
    assert set(found["rules"]) & set(bug(name)["expect"]), f"{bug(name)['why']} Not found: {found}"


def test_without_a_bug_nothing_is_found(tmp_path: Path):
    copy_of_package(tmp_path)
    assert hunt(tmp_path) == {"seed": None, "world": "", "rules": []}


def test_the_copy_is_what_runs(tmp_path: Path):
    package = copy_of_package(tmp_path)
    write(package / "kernel" / "admission.py", "raise SystemExit(7)")
    with pytest.raises(AssertionError):
        hunt(tmp_path)


def test_a_bug_that_no_longer_fits_the_code_is_an_error(tmp_path: Path):
    package = copy_of_package(tmp_path)
    with pytest.raises(ValueError, match="0 times"):
        plant({"file": "kernel/admission.py", "old": "no such line", "new": ""}, package)
    with pytest.raises(ValueError, match="rewrite the bug"):
        plant({"file": "kernel/admission.py", "old": "self", "new": ""}, package)
