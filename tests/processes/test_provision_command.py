"""Workers that commands of an operator start: arguments, exit codes, time limits, output, ids."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.cli_harness import locktender

from locktender.base.clock import ManualClock
from locktender.base.config import Settings, load
from locktender.base.errors import InvalidSettings
from locktender.provision.command import CommandProvisioner, CommandWorkers, JsonList
from locktender.provision.options import provisioner_of
from locktender.provision.protocol import WrongAnswer
from locktender.provision.subprocesses import MAX_OUTPUT_BYTES, CommandFailed, run_command
from locktender.testing import eventually

NAME = "worker-0123456789"
OTHER = "worker-abcdefabcd"
SLURM = Path(__file__).parents[1] / "support" / "fake_slurm.py"


def python(code: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *words)


def provisioner(**options: Any) -> CommandProvisioner:
    return CommandWorkers(**options)(Settings(url="x.db"))


@pytest.fixture
def seen(tmp_path: Path) -> Callable[[], list[Any]]:
    """What the command got: its words and its variables."""
    path = tmp_path / "seen"

    def read() -> list[Any]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    return read


SHOW = """
import json, os, sys
with open(sys.argv[1], "a") as file:
    named = {k: v for k, v in os.environ.items() if k.startswith("LOCKTENDER_")}
    file.write(json.dumps([sys.argv[2:], named]) + "\\n")
print("job-1")
"""


async def test_values_are_words_of_their_own_and_never_a_shell(
    tmp_path: Path, seen: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WORKER_URL", "postgresql://worker:s3cret@db/locktender")
    reason = "for 1 task of $(touch broken); `id` 'x' that lacks only a worker"
    started = provisioner(
        start=python(
            SHOW, str(tmp_path / "seen"), "--name=${name}", "${reason}", "g ${label:gpu}", "$HOME"
        ),
        labels=("gpu=*",),
        settings={"max_tasks": 1, "grace": "5s"},
        worker_url="env:WORKER_URL",
    )
    assert await started.request(1, {"gpu": "a100"}, reason, [NAME]) == [NAME]
    [[words, variables]] = seen()
    assert words == [f"--name={NAME}", reason, "g a100", "$HOME"]
    assert variables["LOCKTENDER_PROVISION"] == NAME
    assert json.loads(variables["LOCKTENDER_WORKER_LABELS"]) == {"gpu": "a100"}
    assert variables["LOCKTENDER_IDLE_EXIT"] == "60000000us"
    assert (variables["LOCKTENDER_MAX_TASKS"], variables["LOCKTENDER_GRACE"]) == ("1", "5s")
    # The url is the worker's own, and only in its environment.
    assert variables["LOCKTENDER_URL"] == "postgresql://worker:s3cret@db/locktender"
    assert "s3cret" not in " ".join(words)
    assert not (tmp_path / "broken").exists()


def test_capacity_knows_labels_and_one_task_per_worker():
    found = provisioner(start=("x",), labels=("gpu=a100", "zone=*"), settings={"max_tasks": 1})
    capacity = found.capacity({"gpu": "a100", "zone": "b"})
    assert capacity is not None
    assert (capacity.total, capacity.labels) == (1, {"gpu": "a100", "zone": "b"})
    assert found.capacity({"gpu": "h100"}) is None
    assert found.capacity({"disk": "big"}) is None
    # A value that could end a quoted text, or be taken for an option, is nobody's.
    assert [found.capacity({"zone": value}) for value in ('b"', "-b", "$(b)", "b c")] == [None] * 4


async def test_a_failed_command_says_its_exit_code_and_error():
    code = "import sys; sys.exit('sbatch: error: invalid partition')"
    with pytest.raises(CommandFailed, match=r"exit code 1: sbatch: error: invalid partition"):
        await provisioner(start=python(code)).request(1, {}, "", [NAME])
    with pytest.raises(CommandFailed, match=r"no-such-program did not start: No such file"):
        await provisioner(start=("no-such-program",)).request(1, {}, "", [NAME])
    with pytest.raises(CommandFailed, match=r"list: .*exit code 3: no output"):
        await provisioner(start=("x",), list=python("raise SystemExit(3)")).list()


async def test_some_that_fail_do_not_take_the_others_with_them():
    code = f"import sys; sys.exit(sys.argv[1] == '{OTHER}')"
    found = provisioner(start=python(code, "${name}"))
    assert await found.request(2, {}, "", [NAME, OTHER]) == [NAME]


HANG = """
import os, subprocess, sys, time
child = [sys.executable, "-c", "import time; time.sleep(3600)"]
apart = subprocess.Popen(child, start_new_session=True)
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()} {apart.pid}")
os.rename(sys.argv[1], sys.argv[1] + ".ready")
time.sleep(3600)
"""


def gone(pids: list[int]) -> bool:
    return not any(
        psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        for pid in pids
    )


async def test_a_hanging_command_is_killed_with_its_descendants(tmp_path: Path):
    """It is cancelled, as by the leader, once it and its child run: on any machine."""
    marks = tmp_path / "pids"
    call = asyncio.create_task(run_command(python(HANG, str(marks)), os.environ, 3_600))
    ready = Path(f"{marks}.ready")
    await asyncio.to_thread(lambda: eventually(ready.exists, "60s"))
    pids = [int(pid) for pid in (await asyncio.to_thread(ready.read_text)).split()]
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(lambda: eventually(lambda: gone(pids), "60s"))


async def test_a_worker_may_come_after_its_command_timed_out():
    found = provisioner(start=python("import time; time.sleep(3600)"), timeout="50ms")
    with pytest.raises(TimeoutError):
        await found.request(1, {}, "", [NAME])


async def test_a_process_that_keeps_the_output_open_is_not_waited_for(tmp_path: Path):
    code = """
import os, subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print("id", left.pid, flush=True)
os._exit(0)
"""
    output = await run_command(python(code), os.environ, 60)
    word, pid = output.out.split()
    assert (output.code, word) == (0, b"id")
    # It was the command's to leave it: with `ssh -f` it is the connection of the worker.
    process = psutil.Process(int(pid))
    assert process.is_running()
    process.kill()


async def test_output_is_bounded():
    code = f"import sys; sys.stdout.write('x' * {3 * MAX_OUTPUT_BYTES}); sys.stderr.write('y' * 99_999)"
    output = await run_command(python(code), os.environ, 60)
    assert (output.code, output.cut, len(output.out)) == (0, True, MAX_OUTPUT_BYTES)
    assert len(output.error) < 10_000
    with pytest.raises(WrongAnswer, match="too long"):
        await provisioner(start=("x",), list=python(code)).list()


async def test_ids_and_states_are_read_from_json(tmp_path: Path):
    """As `aws ecs run-task` and `describe-tasks` print them."""
    started = {"tasks": [{"taskArn": "arn:aws:ecs:eu:1:task/c/77"}], "failures": []}
    tasks = [
        {"startedBy": NAME, "lastStatus": "RUNNING", "taskArn": "arn:77"},
        {"startedBy": OTHER, "lastStatus": "STOPPED", "taskArn": "arn:78"},
        {"startedBy": "ecs-svc/1", "lastStatus": "RUNNING", "taskArn": "arn:79"},
    ]
    released = tmp_path / "released"
    show = "import sys; print(sys.argv[1])"
    keep = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    found = provisioner(
        start=python(show, json.dumps(started)),
        id="tasks[0].taskArn",
        list=python(show, json.dumps({"tasks": tasks})),
        list_json=JsonList("tasks", "startedBy", "lastStatus", "taskArn"),
        release=python(keep, str(released), "${id}"),
    )
    await found.request(1, {}, "", [NAME])
    await found.release(NAME)
    assert released.read_text() == "arn:aws:ecs:eu:1:task/c/77"
    listed = {each.name: (each.state, each.detail) for each in await found.list()}
    assert listed == {NAME: ("running", "RUNNING arn:77"), OTHER: ("ended", "STOPPED arn:78")}
    await found.release(OTHER)
    assert released.read_text() == "arn:78"


async def test_an_output_without_the_id_means_that_the_worker_may_come():
    options = {"start": python("print('{}')"), "id": "tasks.0.taskArn"}
    with pytest.raises(WrongAnswer, match=r"no tasks\.0\.taskArn"):
        await provisioner(**options).request(1, {}, "", [NAME])


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "slurm"
    for pid in (tmp_path / "slurm").glob("job-*/pid"):
        if psutil.pid_exists(int(pid.read_text())):
            psutil.Process(int(pid.read_text())).kill()


def slurm_options(folder: Path, *job: str) -> dict[str, Any]:
    program = (sys.executable, str(SLURM), str(folder))
    return {
        "start": (*program, "sbatch", "--parsable", "--job-name=${name}", "--", *job),
        "list": (*program, "squeue"),
        "release": (*program, "scancel", "${id}"),
    }


async def test_list_is_called_seldom_and_knows_workers_of_before(slurm: Path):
    clock = ManualClock()
    job = python("import signal; signal.pause()")
    options = CommandWorkers(**slurm_options(slurm, *job))
    found = CommandProvisioner(options, Settings(), clock=clock)
    assert await found.list() == []
    await found.request(1, {}, "", [NAME])
    for _ in range(5):
        # Not listed again yet: it is known by its request.
        assert [(each.name, each.state) for each in await found.list()] == [(NAME, "starting")]
    assert (slurm / "calls").read_text().count("squeue") == 1
    clock.advance(10_000_000)
    [listed] = await found.list()
    assert listed.name == NAME

    # A leader that takes over knows it by the engine's list, and its id too.
    successor = CommandProvisioner(options, Settings(), clock=clock)
    await asyncio.to_thread(lambda: eventually(lambda: list(slurm.glob("job-*/pid")), "60s"))
    [listed] = await successor.list()
    assert (listed.name, listed.state) == (NAME, "running")
    await successor.release(NAME)
    await asyncio.to_thread(lambda: eventually(lambda: list(slurm.glob("job-*/code")), "60s"))
    clock.advance(10_000_000)
    [listed] = await successor.list()
    assert (listed.state, listed.released) == ("ended", True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "start"),
        ({"start": []}, "start is empty"),
        ({"start": ["x", "${nmae}"]}, r"\$\{nmae\} is not known"),
        ({"start": "sbatch x"}, "start"),
        ({"start": ["x"], "strat": ["y"]}, "provisioner.strat is not known"),
        ({"start": ["x"], "timeout": "soon"}, "duration"),
        ({"start": ["x"], "labels": ["gpu"]}, "name=value"),
        ({"start": ["x"], "settings": {"idle_exit": "5s"}}, "not a setting of such a worker"),
        ({"start": ["x"], "settings": {"max_tasks": -1}}, "max_tasks"),
        ({"start": ["x"], "states": {"BUSY": "busy"}}, "busy is not a state"),
        ({"start": ["x"], "worker_url": "postgresql://a:b@c/d"}, "must name where the url is"),
        ({"kind": "comand"}, "no provisioner of the kind 'comand'"),
    ],
)
def test_wrong_options_are_refused_at_the_start(options: dict[str, Any], message: str):
    with pytest.raises(InvalidSettings, match=message):
        provisioner_of(Settings(provisioner={"kind": "command", **options}))


PAGE = (Path(__file__).parents[2] / "docs" / "provisioning.md").read_text()
RECIPES = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]


def test_the_recipes_of_the_page_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    kinds: list[str] = []
    for recipe in RECIPES:
        settings = load(tmp_path, overrides=recipe)
        assert provisioner_of(settings).capacity({}) is not None
        kinds.append(settings.provisioner["kind"])
    assert kinds == ["command", "command", "kubernetes"]
    [script] = re.findall(r"```sh\n(#!/bin/sh\n.*?)```", PAGE, re.DOTALL)
    assert subprocess.run(["sh", "-n"], input=script, text=True).returncode == 0


AWS = """
import json, sys
from pathlib import Path
words, here = sys.argv[1:], Path(sys.argv[0]).parent
(here / "told").write_text(json.dumps(words))
if words[1] == "list-tasks" and words[words.index("--desired-status") + 1] == "RUNNING":
    print("\\t".join(f"arn:{n}" for n in range(130)))
if words[1] == "describe-tasks":
    arns = words[words.index("--tasks") + 1:]
    if len(arns) > 100:
        sys.exit("InvalidParameterException: tasks can have at most 100 items")
    for arn in arns:
        print(f"worker-{int(arn[4:]):010x}\\tRUNNING\\t{arn}")
if words[1] == "run-task":
    print(json.dumps({"tasks": [{"taskArn": "arn:1"}], "failures": []}))
"""


async def test_the_recipe_for_ecs_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With an `aws` that keeps what it is told: the overrides are JSON, and have all but the url."""
    [script] = re.findall(r"```sh\n(#!/bin/sh\n.*?)```", PAGE, re.DOTALL)
    for name, text in {"aws": f"#!{sys.executable}{AWS}", "list-workers.sh": script}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    [recipe] = [each for each in RECIPES if "aws" in each["provisioner"].get("start", ())]
    more = {"settings": {"max_tasks": 1}, "labels": ["gpu=*"]}
    recipe = {**recipe, "provisioner": recipe["provisioner"] | more}
    found = provisioner_of(load(tmp_path, overrides=recipe))
    assert await found.request(1, {"gpu": "a100"}, "for a test", [NAME]) == [NAME]
    told = json.loads(await asyncio.to_thread((tmp_path / "told").read_text))
    overrides = json.loads(told[told.index("--overrides") + 1])
    [container] = overrides["containerOverrides"]
    given = {each["name"]: each["value"] for each in container["environment"]}
    assert given == {
        "LOCKTENDER_PROVISION": NAME,
        "LOCKTENDER_IDLE_EXIT": "60000000us",
        "LOCKTENDER_MAX_TASKS": "1",
        "LOCKTENDER_WORKER_LABELS": '{"gpu":"a100"}',
    }
    await found.release(NAME)
    told = json.loads(await asyncio.to_thread((tmp_path / "told").read_text))
    assert told == ["ecs", "stop-task", "--cluster", "flows", "--task", "arn:1"]
    # More than ECS describes at once.
    listed = {each.name: each.detail for each in await found.list()}
    assert listed["worker-0000000081"] == "RUNNING arn:129"
    assert len(listed) == 130


async def test_the_recipe_for_slurm_releases_jobs_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A signal alone would leave it in the queue: it counts there, and starts after it was given up."""
    path = tmp_path / "scancel"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\n')
    path.chmod(0o755)
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 17\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    [recipe] = [each for each in RECIPES if "sbatch" in each["provisioner"].get("start", ())]
    found = provisioner_of(load(tmp_path, overrides=recipe))
    assert await found.request(1, {}, "for a test", [NAME]) == [NAME]
    await found.release(NAME)
    told = (await asyncio.to_thread((tmp_path / "told").read_text)).splitlines()
    assert told == ["--state=PENDING 17", "--state=RUNNING --signal=TERM --batch 17"]


async def test_a_list_that_fails_is_not_repeated_at_once(tmp_path: Path):
    clock = ManualClock()
    code = "import sys; open(sys.argv[1], 'a').write('x'); sys.exit(1)"
    calls = tmp_path / "calls"
    options = CommandWorkers(start=("x",), list=python(code, str(calls)))
    found = CommandProvisioner(options, Settings(), clock=clock)
    for _ in range(3):
        with pytest.raises(CommandFailed):
            await found.list()
    assert await asyncio.to_thread(calls.read_text) == "x"
    clock.advance(10_000_000)
    with pytest.raises(CommandFailed):
        await found.list()
    assert await asyncio.to_thread(calls.read_text) == "xx"


def test_a_wrong_kind_is_refused_with_the_nearest(tmp_path: Path):
    (tmp_path / "locktender.toml").write_text('max_workers = 1\n[provisioner]\nkind = "comand"\n')
    done = locktender("server", "--port", "0", cwd=tmp_path)
    assert done.code == 2
    assert "Did you mean 'command'" in done.err
    named = locktender("server", "--port", "0", "--provisioner", "kubernets", cwd=tmp_path)
    assert "Did you mean 'kubernetes'" in named.err
