"""Workers started on overflow as a user meets them: a script, the command line, a provisioner of one's own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import broken_promises
from tests.support.cli_harness import (
    batch,
    environment,
    interrupt,
    locktender,
    output_of,
    started,
    until,
)

from locktender import connect
from locktender.base.config import Settings
from locktender.base.durations import microseconds

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

pytest_plugins = ["locktender.testing.postgres"]
PATIENCE = 110
PAGE = (Path(__file__).parents[2] / "docs" / "provisioning.md").read_text()
OPTIONS = {"total_permits": 1, "provision_interval": "200ms", "grace": "3s"}
SETS = [word for key, value in OPTIONS.items() for word in ("--set", f"{key}={value}")]

FLOWS = """
import os

from locktender import flow, step
from shop.parts import meet, packed


@step
def work(x: int) -> int:
    return meet()


@step(needs={"gpu": "a100"})
def drawn() -> int:
    return os.getpid()


@flow
def many(n: int = 3):
    return [work.map(range(n)), packed.map(range(2))]


@flow
def drawing():
    return drawn()


@flow
def plain(n: int = 4):
    return work.map(range(n))


@step
def alone(x: int) -> int:
    return os.getpid()


@flow
def apart(n: int = 4):
    return alone.map(range(n))
"""
PARTS = """
import os
import time
from pathlib import Path

from locktender import step


def meet() -> int:
    # Bodies wait until two processes work: whoever starts late is waited for.
    marks = Path(__file__).with_name("marks")
    marks.mkdir(exist_ok=True)
    (marks / str(os.getpid())).touch()
    end = time.monotonic() + 100
    while len(list(marks.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    return os.getpid()


@step
def packed(x: int) -> int:
    return meet()
"""
SCRIPT = (
    FLOWS
    + """

if __name__ == "__main__":
    import json
    import sys

    from locktender import embedded

    with embedded(sys.argv[1], max_workers=2, **json.loads(sys.argv[2])) as engine:
        print(json.dumps([os.getpid(), *engine.submit(many).result("100s")]))
"""
)
AWAITED = (
    FLOWS
    + """

async def main():
    async with embedded_async(sys.argv[1], max_workers=2, **json.loads(sys.argv[2])) as engine:
        run = await engine.submit(many)
        print(json.dumps([os.getpid(), *await run.result("100s")]))


if __name__ == "__main__":
    import asyncio
    import json
    import sys

    from locktender import embedded_async

    asyncio.run(main())
"""
)
FORGOTTEN = """
import json
import os
import sys

from elastic_flows import many

from locktender import embedded

if __name__ == "__main__":
    engine = embedded(sys.argv[1], max_workers=2, **json.loads(sys.argv[2]))
    print(json.dumps([os.getpid(), *engine.submit(many).result("100s")]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A script, a package beside it, and a working directory that is neither."""
    folder = tmp_path / "project"
    (folder / "shop").mkdir(parents=True)
    (folder / "shop" / "__init__.py").write_text("")
    (folder / "shop" / "parts.py").write_text(PARTS)
    (folder / "elastic_flows.py").write_text(FLOWS)
    (tmp_path / "elsewhere").mkdir()
    return folder


def python(
    *words: str, cwd: Path, text: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**environment(), **env},
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


# -- a program of one's own ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        # `test_a_flow_that_is_run_directly_follows_the_setting` has a sync engine, too.
        pytest.param(SCRIPT, id="sync", marks=pytest.mark.long),
        pytest.param(AWAITED, id="async"),
        pytest.param(FORGOTTEN, id="all imported and not closed"),
    ],
)
def test_a_script_starts_workers_with_all_its_steps(project: Path, tmp_path: Path, text: str):
    (project / "elastic_script.py").write_text(text)
    url = tmp_path / "locktender.db"
    done = python(
        str(project / "elastic_script.py"),
        str(url),
        json.dumps(OPTIONS),
        cwd=tmp_path / "elsewhere",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    pid, worked, packed = json.loads(done.stdout)
    pids = {*worked, *packed}
    assert pid in pids
    assert 2 <= len(pids) <= 3
    assert not any(psutil.pid_exists(each) for each in pids)
    assert broken_promises(url) == []


@pytest.mark.long  # who is asked for, and how often: `test_provision_take_over`, on both stores
def test_on_postgres_too(project: Path, tmp_path: Path, postgres_url: str):
    (project / "elastic_script.py").write_text(SCRIPT)
    done = python(
        str(project / "elastic_script.py"), postgres_url, json.dumps(OPTIONS), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    _, worked, packed = json.loads(done.stdout)
    assert 2 <= len({*worked, *packed}) <= 3


TYPED = """
from locktender import embedded, flow, step

@step
def typed(x: int) -> int:
    return x

@flow
def one():
    return typed(7)

"""


def test_steps_typed_at_a_prompt_are_refused(tmp_path: Path):
    refused = python("-", cwd=tmp_path, text=TYPED + "embedded(max_workers=2)\n")
    assert refused.returncode == 1
    assert "<stdin>:typed (it was typed at a prompt and is in no file)" in refused.stderr
    assert "Put them into a file" in refused.stderr
    # the setting may be meant for a server: what can run here runs
    ran = python("-", cwd=tmp_path, text=TYPED + "print(one.run())\n", LOCKTENDER_MAX_WORKERS="2")
    assert ran.stdout == "7\n"
    assert "LOCKTENDER_MAX_WORKERS is ignored" in ran.stderr


def test_a_flow_that_is_run_directly_follows_the_setting(project: Path, tmp_path: Path):
    sets = "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in {**OPTIONS, "max_workers": 2}.items()
    )
    (tmp_path / "locktender.toml").write_text(sets)
    (project / "elastic_script.py").write_text(
        FLOWS + "if __name__ == '__main__':\n    print(many.run())\n"
    )
    done = python(str(project / "elastic_script.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len({pid for each in json.loads(done.stdout) for pid in each}) >= 2


# -- the command line ------------------------------------------------------------------------------


def pids_of(answer: Any) -> set[int]:
    return set(answer[0] + answer[1] if isinstance(answer[0], list) else answer)


def ended(run: str, cwd: Path) -> Any:
    """The result of a run, once it has succeeded."""
    with connect(cwd / ".locktender" / "locktender.db") as client:
        return client.runs.get(run).result("100s")


def test_run_starts_more_workers(project: Path, tmp_path: Path):
    file = str(project / "elastic_flows.py")
    said = locktender(
        "run", f"{file}:many", "--max-workers", "2", *SETS, "-q", cwd=tmp_path, timeout=PATIENCE
    )
    assert said.code == 0, said.err
    assert len(pids_of(said.data)) >= 2


def test_workers_of_a_server_have_its_maximum_and_labels(project: Path):
    (project / "locktender.toml").write_text("max_workers = 1\n")
    words = ("server", "--port", "0", "--spawn", "elastic_flows", "--label", "gpu=a100", *SETS)
    with started(*words, cwd=project) as server:
        until(lambda: "server on" in output_of(server), "the server")
        run = locktender("submit", "elastic_flows.py:drawing", "--json", cwd=project).data["id"]
        pid = ended(run, project)
        [worker] = locktender("workers", "list", "--json", cwd=project).data
        assert worker["labels"] == {"gpu": "a100"}
        assert worker["pid"] == pid != server.pid
        interrupt(server)
        assert server.wait(PATIENCE) == 0
    assert not psutil.pid_exists(pid)


BAD = {
    "no maximum": (["server", "--spawn", "flows.py"], ["--max-workers 3", "locktender.toml"]),
    "none": (["server", "--spawn", "flows.py", "--max-workers", "0"], ["--max-workers 3"]),
    "nobody": (
        ["server", "--max-workers", "3"],
        ["--max-workers is for workers", "--spawn flows.py"],
    ),
    "nobody by a setting": (["server", "--set", "max_workers=3"], ["it starts none"]),
    "labels of nobody": (["server", "--label", "gpu=a100"], ["--label is for workers", "--spawn"]),
    "no file": (["server", "--spawn", "flwos.py", "--max-workers", "2"], ["'flows.py'"]),
    "no module": (["server", "--spawn", "flwos", "--max-workers", "2"], ["no module 'flwos'"]),
    "a folder": (["server", "--spawn", ".", "--max-workers", "2"], [". is a directory"]),
    "a word": (["server", "--spawn", "flows.py", "--max-workers", "two"], ["a whole number"]),
    "negative": (["server", "--spawn", "flows.py", "--max-workers", "-1"], ["0 or more"]),
    "a label without a value": (
        ["server", "--spawn", "flows.py", "--max-workers", "2", "--label", "gpu"],
        ["--label takes name=value"],
    ),
    "the other idle_exit": (
        ["server", "--spawn", "flows.py", "--max-workers", "2", "--set", "idle_exit=5s"],
        ["provisioned_idle_exit"],
    ),
    "what cannot work": (
        ["server", "--spawn", "flows.py", "--max-workers", "2", "--set", "start_timeout=2s"],
        ["start_timeout (2s)", "leader_lease (5s)"],
    ),
    "both": (
        ["server", "--spawn", "flows.py", "--provisioner", "mine:Half", "--max-workers", "2"],
        ["Leave one of them out"],
    ),
    "a provisioner without a maximum": (["server", "--provisioner", "mine:Half"], ["how many"]),
    "a provisioner without a name": (
        ["server", "--provisioner", "mine", "--max-workers", "2"],
        ["needs a module and a name in it"],
    ),
    "a provisioner that is not there": (
        ["server", "--provisioner", "mine:Hafl", "--max-workers", "2"],
        ["Did you mean 'Half'?"],
    ),
    "a flow for a provisioner": (
        ["server", "--port", "0", "--provisioner", "flows.py:plain", "--max-workers", "2"],
        ["flow flows:plain is not a provisioner"],
    ),
    "a step for a provisioner": (
        ["server", "--port", "0", "--provisioner", "flows.py:work", "--max-workers", "2"],
        ["step flows:work is not a provisioner"],
    ),
    "half a provisioner": (
        ["server", "--port", "0", "--provisioner", "mine:half", "--max-workers", "2"],
        ["Half is not a provisioner: it has no request, list, release, close"],
    ),
    "a provisioner that fails": (
        ["server", "--port", "0", "--provisioner", "mine.py:fails", "--max-workers", "2"],
        ["failed to make the provisioner: RuntimeError: no credentials", "mine.py"],
    ),
    "dev: a word": (["dev", "flows.py", "--max-workers", "two"], ["a whole number"]),
    "dev: a fraction": (["dev", "flows.py", "--max-workers", "1.5"], ["a whole number"]),
    "dev: too many": (["dev", "flows.py", "--max-workers", "10001"], ["10,000 or less"]),
    "dev: no file": (["dev", "flwos.py", "--max-workers", "2"], ["'flows.py'"]),
    "dev: the other idle_exit": (
        ["dev", "flows.py", "--max-workers", "2", "--set", "idle_exit=5s"],
        ["provisioned_idle_exit"],
    ),
    "dev: an empty label": (["dev", "flows.py", "--label", "gpu="], ["worker_labels.gpu"]),
    "dev: a provisioner without a maximum": (
        ["dev", "flows.py", "--provisioner", "mine:half"],
        ["--provisioner needs max_workers"],
    ),
    "dev: half a provisioner": (
        ["dev", "flows.py", "--provisioner", "mine:half", "--max-workers", "2"],
        ["it has no request, list, release, close"],
    ),
    "worker": (
        ["worker", "flows.py", "--set", "max_workers=2"],
        ["max_workers cannot be set on a worker; set it on the server."],
    ),
    "run: a word": (["run", "flows.py:plain", "--max-workers", "two"], ["a whole number"]),
}
MINE = """
class Half:
    def capacity(self, needs):
        return None

half = Half()

def fails(settings):
    raise RuntimeError("no credentials")
"""


def test_wrong_input_is_refused_in_words_that_help(project: Path):
    (project / "flows.py").write_text(FLOWS)
    (project / "mine.py").write_text(MINE)
    said = batch({name: words for name, (words, _) in BAD.items()}, cwd=project)
    for name, (_, words) in BAD.items():
        answer = said[name]
        assert answer.code == 2, (name, answer)
        shown = re.sub(r"\s+", " ", answer.err)
        assert all(word in shown for word in words), (name, answer.err)


# -- a provisioner of one's own, as the page has it ------------------------------------------------


@pytest.fixture
def machines(project: Path) -> Path:
    [text] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (project / "machines.py").write_text(text)
    (project / "flows.py").write_text(FLOWS)
    return project


def test_the_pages_provisioner_serves_a_server(machines: Path):
    words = ("--provisioner", "machines:Machines", "--max-workers", "2")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path)
        with started("server", "--port", "0", *words, *SETS, cwd=machines) as server:
            until(lambda: "server on" in output_of(server), "the server")
            run = locktender("submit", "flows.py:apart", "--json", cwd=machines).data["id"]
            pids = pids_of(ended(run, machines))
            names = [
                each["provision"]
                for each in locktender("workers", "list", "--json", cwd=machines).data
            ]
            assert names
            assert all(names)
            interrupt(server)
            assert server.wait(PATIENCE) == 0
    assert 1 <= len(pids) <= 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_the_pages_provisioner_serves_a_script(machines: Path):
    (machines / "elastic_script.py").write_text(
        "import json, os\n"
        "from flows import plain\n"
        "from machines import Machines\n"
        "from locktender import embedded\n"
        "if __name__ == '__main__':\n"
        f"    with embedded(provisioner=Machines, max_workers=1, **{OPTIONS!r}) as engine:\n"
        "        pids = [os.getpid()]\n"
        "        while set(pids) == {os.getpid()}:\n"
        "            pids += engine.submit(plain, 8).result('50s')\n"
        "        print(json.dumps([os.getpid(), pids]))\n"
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = python("elastic_script.py", cwd=machines, PATH=path)
    assert done.returncode == 0, done.stderr
    # the workers print on the same stdout
    pid, pids = json.loads(done.stdout.splitlines()[-1])
    [other] = set(pids) - {pid}
    assert not psutil.pid_exists(other)


def test_every_setting_of_the_page_is_one_with_that_default():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for name, default in rows:
        if default.isdigit():
            assert getattr(Settings(), name) == int(default)
        else:
            assert getattr(Settings(), f"{name}_us") == microseconds(default), name
