"""A script that does its work outside `if __name__ == "__main__":` says so; it does not start itself again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cli_harness import environment, locktender

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

STEPS = """
import asyncio
from locktender import connect, embedded, embedded_async, flow, step


@step(executor="process")
def double(x: int) -> int:
    return 2 * x


@flow
def doubled(x: int) -> int:
    return double(x)


async def main():
    async with embedded_async() as engine:
        return await (await engine.submit(doubled, 4)).result("60s")

"""
WAYS = {
    "embedded": "with embedded() as engine:\n    print(engine.submit(doubled, 4).result('30s'))\n",
    "embedded_async": "print(asyncio.run(main()))\n",
    "flow.run": "print(doubled.run(4))\n",
}
FIX = "if __name__ == '__main__':"


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_a_process_step_under_the_main_guard_is_refused(tmp_path: Path):
    """Where a child imports the file, it is not there."""
    steps, _, _ = STEPS.partition("async def main()")
    head, _, step = steps.partition("@step")
    under = "".join(f"    {line}\n" for line in f"@step{step}print(doubled.run(4))".splitlines())
    script = tmp_path / "flows.py"
    script.write_text(f"{head}\nif __name__ == '__main__':\n{under}")

    done = _run(tmp_path, sys.executable, str(script))

    assert done.returncode != 0
    assert "what stands under if __name__ == '__main__': is not there then" in done.stderr
    assert "Move the step out of it." in done.stderr


def test_a_process_step_that_is_in_no_file_says_so(tmp_path: Path):
    script = STEPS + WAYS["flow.run"]

    for command, given in (["-c", script], None), (["-"], script):
        done = subprocess.run(
            [sys.executable, *command],
            input=given,
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert "was defined in no file, so no other process can import it" in done.stderr
        assert "Put it in a file" in done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_child_does_not_run_the_script_again(way: str, tmp_path: Path):
    script = tmp_path / "flows.py"
    script.write_text(STEPS + WAYS[way])

    done = _run(tmp_path, sys.executable, str(script))

    assert done.returncode != 0
    assert f"{script} starts an engine while a worker imports it for its steps" in done.stderr
    assert FIX in done.stderr


@pytest.mark.parametrize("way", ["embedded", "flow.run"])
def test_a_worker_refuses_the_file(way: str, tmp_path: Path):
    (tmp_path / "flows.py").write_text(STEPS + WAYS[way])

    done = locktender("worker", "flows.py", cwd=tmp_path)

    assert done.code == 2
    assert "flows.py starts an engine while a worker imports it for its steps" in done.err
    assert FIX in done.err


def test_a_client_of_an_imported_module_submits_nothing(tmp_path: Path):
    (tmp_path / "shared.py").write_text(STEPS + "engine = connect()\n")
    (tmp_path / "flows.py").write_text(
        "from shared import doubled\n\nif __name__ == '__main__':\n    print(doubled.run(4))\n"
    )
    (tmp_path / "hasty.py").write_text(STEPS + "connect().submit(doubled, 4)\n")

    assert _run(tmp_path, sys.executable, "flows.py").stdout == "8\n"
    refused = locktender("worker", "hasty.py", cwd=tmp_path)
    assert refused.code == 2
    assert "hasty.py submits a run while a worker imports it for its steps" in refused.err


def test_a_script_that_starts_itself_in_a_thread_is_stopped(tmp_path: Path):
    (tmp_path / "flows.py").write_text(
        STEPS
        + """
import threading

def work():
    with embedded(grace="0s") as engine:
        engine.submit(doubled, 4).wait("60s")


print("imported", flush=True)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    )

    done = _run(tmp_path, sys.executable, "flows.py")

    assert "3 deep" in done.stderr
    assert FIX in done.stderr


def test_a_body_may_open_what_it_likes(tmp_path: Path):
    script = tmp_path / "flows.py"
    script.write_text(
        STEPS
        + """
@step(executor="process")
def looks() -> int:
    with connect() as engine:
        return len(engine.runs.list())


@flow
def looking() -> int:
    return looks()


if __name__ == "__main__":
    print(looking.run())
"""
    )

    done = _run(tmp_path, sys.executable, str(script))

    assert done.stdout == "1\n", done.stderr
