"""A script that does its work outside `if __name__ == "__main__":` says so; it does not start itself again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.acceptance.cli_harness import PROGRAM, environment

STEPS = """
import asyncio
from headgate import connect, embedded, embedded_async, flow, step


@step(executor="process")
def double(x: int) -> int:
    return 2 * x


@flow
def doubled(x: int) -> int:
    return double(x)


async def main():
    async with embedded_async() as hg:
        return await (await hg.submit(doubled, 4)).result("30s")

"""
WAYS = {
    "embedded": "with embedded() as hg:\n    print(hg.submit(doubled, 4).result('30s'))\n",
    "embedded_async": "print(asyncio.run(main()))\n",
    "flow.run": "print(doubled.run(4))\n",
}
FIX = "if __name__ == '__main__':"


@pytest.mark.parametrize("way", WAYS)
def test_a_child_does_not_run_the_script_again(way: str, tmp_path: Path):
    script = tmp_path / "flows.py"
    script.write_text(STEPS + WAYS[way])

    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode != 0
    assert f"{script} opens headgate while a worker imports it for its steps" in done.stderr
    assert FIX in done.stderr


@pytest.mark.parametrize("way", ["embedded", "flow.run"])
def test_a_worker_refuses_the_file(way: str, tmp_path: Path):
    (tmp_path / "flows.py").write_text(STEPS + WAYS[way])

    done = subprocess.run(
        [*PROGRAM, "worker", "flows.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert "flows.py opens headgate while a worker imports it for its steps" in done.stderr
    assert FIX in done.stderr


def test_a_body_may_open_what_it_likes(tmp_path: Path):
    script = tmp_path / "flows.py"
    script.write_text(
        STEPS
        + """
@step(executor="process")
def looks() -> int:
    with connect() as hg:
        return len(hg.runs.list())


@flow
def looking() -> int:
    return looks()


if __name__ == "__main__":
    print(looking.run())
"""
    )

    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout == "1\n", done.stderr
