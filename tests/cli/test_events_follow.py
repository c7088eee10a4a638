"""`events --follow` with the real program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from locktender import embedded, flow, step

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]


@step
async def double(n: int) -> int:
    return 2 * n


@flow
def doubled(n: int) -> object:
    return double(n)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_run_is_followed_to_its_end(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url: str = str(tmp_path / "locktender.db")
    if store == "postgres":
        url = request.getfixturevalue("postgres_url")
    with embedded(url) as client:
        client.submit(doubled, 1).result("90s")
        run = client.submit(doubled, 2)
        command = [sys.executable, "-m", "locktender", "events", run.id, "--follow", "--json"]
        following = subprocess.Popen([*command, "--url", url], stdout=subprocess.PIPE, text=True)
        try:
            assert run.result("90s") == 4
            out, _ = following.communicate(timeout=90)
        finally:
            following.kill()
    events = [json.loads(line) for line in out.splitlines()]
    assert following.returncode == 0
    runs = [each["after"] for each in events if each["subject"] == "run"]
    assert runs == ["queued", "running", "succeeded"]
    assert len({each["run"] for each in events}) == 1
