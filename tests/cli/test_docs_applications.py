"""docs/applications.md and the Django example: every block is run against real processes."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.cli_harness import PATIENCE, environment, locktender, until
from tests.support.roles import as_role, made_role

from locktender import connect
from locktender.testing import check_history
from locktender.testing.postgres_server import execute, run

pytest_plugins = ["locktender.testing.postgres"]
pytestmark = pytest.mark.timeout(300)  # several processes: on a busy machine each starts late
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "applications.md").read_text()
SHELL = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SERVER = ("server", "--port", "0", "--json", "--with-parent")
WORKER = ("worker", "--lead", "--app", "locktender.integrations.django", "--json", "--with-parent")


def written(folder: Path, *names: str) -> None:
    """The files of the page, each by the name in its first line."""
    files = {re.match(r"# (\w+\.py)", block)[1]: block for block in PYTHON}  # type: ignore[index]
    assert len(files) == len(PYTHON)
    for name in names:
        (folder / name).write_text(files[name])


@contextmanager
def running(*command: str, cwd: Path, **env: str) -> Iterator[Path]:
    """A process; the file of what it says."""
    said = cwd / "said.txt"
    given = {**environment(), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(cwd), **env}
    with said.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=given,
        )
    try:
        yield said
    finally:
        process.terminate()
        process.wait(PATIENCE)
        if process.stdin is not None:
            process.stdin.close()


def typed(text: str, cwd: Path, **env: str) -> str:
    path = f"{Path(sys.executable).parent}:{environment().get('PATH', '')}"
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{text}"],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**environment(), "PATH": path, "PYTHONPATH": str(cwd), **env},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_block_is_run_by_a_test_here():
    assert len(SHELL) == 3
    assert len(PYTHON) == 5


def test_fastapi(tmp_path: Path):
    written(tmp_path, "app.py")
    with running("uvicorn", "app:app", "--port", "0", cwd=tmp_path) as said:
        until(lambda: "running on" in said.read_text(), "the address")
        [port] = re.findall(r"running on http://127.0.0.1:(\d+)", said.read_text())
        shown = typed(SHELL[0].replace("8000", port), tmp_path)
        assert shown.startswith('"12.50 charged"')
        assert '"code":"not_found"' in shown
    check_history(str(tmp_path / ".locktender" / "locktender.db"))


def test_django(tmp_path: Path):
    written(tmp_path, "settings.py", "letters.py", "enqueue.py")
    env = {"DJANGO_SETTINGS_MODULE": "settings"}
    with running("locktender", *WORKER, "--url", "tasks.db", cwd=tmp_path, **env):
        shown = typed(SHELL[1], tmp_path, **env)
    assert shown.startswith("posted to ann\n")
    assert "django task" in shown
    check_history(str(tmp_path / "tasks.db"))


def test_the_django_example(tmp_path: Path):
    site = tmp_path / "site"
    shutil.copytree(ROOT / "examples" / "django_shop", site)
    env = {"DJANGO_SETTINGS_MODULE": "settings"}
    store = ".locktender/locktender.db"
    with running("locktender", *WORKER, "--url", store, cwd=site, **env):
        assert typed("python order.py", site, **env) == "ann@example.com: 12.50\n"
    check_history(str(site / store))


def test_a_role_that_may_only_submit(postgres_url: str, tmp_path: Path):
    written(tmp_path, "app.py", "order.py")
    making = made_role(postgres_url)
    with asyncio.Runner() as loop:
        role = loop.run(making.__aenter__())
        run(
            execute(
                postgres_url, "CREATE TABLE orders (id int)", f"GRANT INSERT ON orders TO {role}"
            )
        )
        try:
            typed(SHELL[2].replace("app", role), tmp_path, LOCKTENDER_URL=postgres_url)
            file = tmp_path / "order.py"
            mine = as_role(postgres_url, role)
            file.write_text(file.read_text().replace("postgresql://app@db.example/shop", mine))
            run_id = typed("python order.py", tmp_path).strip()
        finally:
            loop.run(making.__aexit__(None, None, None))
    with connect(postgres_url) as client:
        # No worker has announced the flow: the leader says so. It is a process that knows none.
        with running("locktender", *SERVER, "--url", postgres_url, cwd=tmp_path):
            assert client.runs.get(run_id).wait("60s") == "rejected"
        assert "no worker has announced" in str(client.runs.get(run_id).info().error)
    assert locktender("audit", "--url", postgres_url, cwd=tmp_path).code == 0


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#\s]+)", TEXT))))
def test_every_link_leads_somewhere(link: str):
    assert (ROOT / "docs" / link).exists()
