"""The command line starts quickly: a command's own modules are imported when it runs.

The set of modules is bounded here, not the time: that depends on the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cli_harness import PROGRAM

from locktender import Run, embedded, flow, step
from locktender.observe import live
from locktender.testing import eventually

pytest_plugins = ["locktender.testing.postgres"]

RUN = "RUN"
LIGHT = ("locktender.base", "locktender.cli")
_LOADED = """
import sys
from locktender.cli.main import main
try:
    main({arguments!r})
finally:
    print(*sys.modules, file=sys.stderr)
"""


@step
async def answer() -> int:
    return 42


@flow
def answered() -> int:
    return answer()


def loaded(*arguments: str, cwd: Path | None = None) -> set[str]:
    """The modules that a command line loads."""
    script = _LOADED.format(arguments=list(arguments))
    done = subprocess.run(
        [sys.executable, "-c", script],
        # Lines that do not fit are folded by rich: no terminal of the caller's may decide about that.
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.splitlines()[-1].split())


def of(modules: set[str], *packages: str) -> list[str]:
    return sorted(
        name for name in modules if f"{name}.".startswith(tuple(f"{p}." for p in packages))
    )


def test_the_program_imports_no_engine_until_a_command_needs_one():
    script = "import sys, locktender.cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    names = [name for name in done.stdout.split() if name.startswith("locktender.")]

    assert [name for name in names if not name.startswith(LIGHT)] == []
    # Its steps would be announced by every worker.
    assert "locktender.cli.demo_flow" not in names


ENGINE = [
    f"locktender.{part}"
    for part in ("leader", "worker", "provision", "server", "simulate", "flows")
]
RULES = ["locktender.kernel.gates", "locktender.kernel.scheduler", "locktender.observe"]
FOREIGN = ["psutil", "prometheus_client", "starlette", "uvicorn", "asyncpg", "pydantic"]
PRINTING = ["rich", "typer.rich_utils", "pygments"]
"""What fits is written without it: to load it takes a sixth of a command's time."""


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        (["runs", "list"], [*ENGINE, *RULES, *FOREIGN, *PRINTING, "locktender.client.mailing"]),
        (["runs", "list", "--json"], [*ENGINE, *RULES, *FOREIGN, *PRINTING]),
        (["limits", "list"], [*ENGINE, *RULES, *FOREIGN, *PRINTING]),
        (["workers", "list"], [*ENGINE, *RULES, *FOREIGN, *PRINTING]),
        (["waiting"], [*ENGINE, *RULES, *FOREIGN, *PRINTING]),
        (["events"], [*ENGINE, *RULES, *FOREIGN]),
        (["pools", "list"], [*ENGINE, *FOREIGN, *PRINTING]),
        (["queue", "list"], [*ENGINE, *FOREIGN, *PRINTING]),
        (["why", RUN], [*ENGINE, *FOREIGN, *PRINTING]),
        (["runs", "show", RUN], [*ENGINE, *FOREIGN, *PRINTING]),
    ],
    ids=lambda each: " ".join(each) if len(each) < 4 else "",
)
def test_a_command_that_reads_a_store_loads_no_engine(
    command: list[str], unused: list[str], tmp_path: Path
):
    url = tmp_path / "locktender.db"
    # It depends on locktender, and has no settings of it: no parser is needed.
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["locktender"]\n')
    with embedded(url) as client:
        run = client.submit(answered)
        run.result("60s")

    words = [run.id if each is RUN else each for each in command]
    modules = loaded(*words, "--url", str(url), cwd=tmp_path)

    assert of(modules, *unused, "tomllib") == []
    assert "locktender.engine" not in modules
    # One command line loads the file of its own word.
    assert len(of(modules, "locktender.cli")) <= 12
    assert len(of(modules, "locktender")) <= (126 if RULES[0] in unused else 192)


@step(pool="shut")
async def waits(_: int) -> None: ...


@flow
def waiting() -> None:
    waits.map(range(live.MIN_TASKS))


WRITING = [
    "locktender.base.commits",
    *(f"locktender.store.postgres.{each}" for each in ("client_verbs", "commits", "leader_verbs")),
    *(
        f"locktender.store.postgres.{each}"
        for each in ("recovery", "submit_batcher", "worker_verbs")
    ),
]


def _requested(run: Run) -> int:
    return sum(task.state == "requested" for task in run.tasks())


def test_a_command_that_a_leader_answers_does_without_the_rules(postgres_url: str):
    with embedded(postgres_url, pools={"shut": 1}, grace="0s") as client:
        client.pools.pause("shut")
        run = client.submit(waiting)
        # Items of a large map have their rows after two seconds; fewer rows, and the command needs no leader.
        eventually(lambda: _requested(run) == live.MIN_TASKS, "120s")

        for command in (["why", run.id], ["pools", "list"]):
            modules = loaded(*command, "--url", postgres_url)

            assert of(modules, *ENGINE, *PRINTING, *RULES[:2]) == [], command
            assert of(modules, *WRITING) == [], command
            others = ("locktender.store.sqlite", "sqlite3", "locktender.store.postgres.place")
            assert of(modules, *others) == [], "of the other kind of store, and of copies"
        run.cancel()


@pytest.mark.parametrize(
    ("how", "columns"),
    [([], "400"), ([], "40"), (["--json"], "80")],
    ids=["text", "printed by rich", "json"],
)
def test_a_reader_that_is_gone_ends_a_command_with_141(
    how: list[str], columns: str, tmp_path: Path
):
    url = tmp_path / "locktender.db"
    with embedded(url) as client:
        client.submit(answered).result("60s")
    command = subprocess.Popen(
        [*PROGRAM, "runs", "list", *how, "--url", str(url)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": columns},
    )
    assert command.stdout is not None
    command.stdout.close()

    _, said = command.communicate(timeout=60)

    assert (command.returncode, said) == (141, b"")
