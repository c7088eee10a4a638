"""The wheel and the source archive: complete, and enough to run from in an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "locktender"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="pip install --group deploy")
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


def build(root: Path, folder: Path, *kinds: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), *kinds]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def wheel(folder: Path) -> Path:
    [found] = folder.glob("*.whl")
    return found


def contents(folder: Path) -> set[str]:
    with zipfile.ZipFile(wheel(folder)) as archive:
        return set(archive.namelist())


def test_the_wheel_has_every_file_of_the_package(built: Path):
    ours = {
        f"locktender/{path.relative_to(PACKAGE)}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    found = contents(built)
    assert ours - found == set()
    assert "locktender/py.typed" in found
    suffixes = {Path(name).suffix for name in found}
    assert {".sql", ".css", ".js", ".html"} <= suffixes
    assert not any("__pycache__" in name or name.startswith("tests/") for name in found)


def test_the_wheel_has_no_tests_and_has_the_licences(built: Path):
    with zipfile.ZipFile(wheel(built)) as archive:
        names = archive.namelist()
        size = sum(each.file_size for each in archive.infolist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"locktender"}
    vendored = [Path(name).name for name in names if "/static/vendor/" in name]
    licences = {Path(name).name for name in names if "/licenses/" in name}
    parts = {name.split(".")[0].split("-")[0] for name in vendored}
    assert {"LICENSE", *(f"{part}.LICENSE" for part in parts)} <= licences
    assert len(parts) == 3
    assert size < 6e6


def test_the_source_archive_builds_the_same_wheel(built: Path, tmp_path: Path):
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(tmp_path, filter="data")
    [root] = [path for path in tmp_path.iterdir() if path.is_dir()]
    build(root, tmp_path / "again", "--target", "wheel")
    assert contents(tmp_path / "again") == contents(built)


def environment_with(built: Path, folder: Path) -> Path:
    """A new environment with the wheel; what the wheel needs is found where these tests have it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = ["install", "-qq", "--no-deps", "--no-index", str(wheel(built))]
    pip = [sys.executable, "-m", "pip", "--python", str(python), *install]
    subprocess.run(pip, check=True, timeout=120)
    [site] = folder.glob("lib/python*/site-packages")
    # A path, not a site: the editable Locktender there is not found by it.
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def test_the_demo_runs_from_the_wheel(built: Path, tmp_path: Path):
    programs = environment_with(built, tmp_path / "clean")
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(programs / words[0]), *words[1:]],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=200,
        )

    where = run("python", "-c", "import locktender; print(locktender.__file__)").stdout.strip()
    assert Path(where).is_relative_to(tmp_path / "clean")
    done = run("locktender", "demo")
    assert done.returncode == 0, done.stderr
    assert "Everything held" in done.stdout


@pytest.mark.long
def test_what_pip_install_brings(built: Path, tmp_path: Path, record_property: Any):
    """By the registry, as a user has it: how many distributions, and how large."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "clean")], check=True)
    pip = [str(tmp_path / "clean" / "bin" / "python"), "-m", "pip"]
    done = subprocess.run(
        [*pip, "install", "-qq", f"{wheel(built)}[postgres]"], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no registry: {done.stderr[-200:]}")
    [site] = (tmp_path / "clean").glob("lib/python*/site-packages")
    ours = {"pip", "setuptools", "pkg_resources", "_distutils_hack"}
    names = {path.name.split("-")[0].lower() for path in site.glob("*.dist-info")} - ours
    size = sum(
        path.stat().st_size
        for path in site.rglob("*")
        if path.is_file() and path.relative_to(site).parts[0].split("-")[0] not in ours
    )
    record_property("distributions", len(names))
    record_property("megabytes", round(size / 1e6, 1))
    assert len(names - {"locktender"}) <= 20, sorted(names)
    assert size < 45e6, size
    assert not names & {"pydantic", "kubernetes", "requests", "ray"}
