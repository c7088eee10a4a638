"""Every block of code of every page: it is run, or the page says above it why it is not."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest
import yaml
from tests.support.doc_blocks import ROOT, RUN_BY, Block, blocks_of, pages

from locktender import embedded, flow, step

pytestmark = pytest.mark.timeout(300)  # programs and processes: on a busy machine each starts late
pytest_plugins = ["locktender.testing.postgres"]

SHELL = ("sh", "console")
DATA = ("json", "toml", "yaml")
SQL = ("sql",)
NO_CODE = ("", "text", "{toctree}", "{image}")
"""Output, diagrams, lists of contents and pictures."""
URL = re.compile(r"'?postgresql://[^\s'\"]*example[^\s'\"]*'?")
MARK = "\x01"
PAGES = [each for each in pages() if not RUN_BY.search(each.read_text(encoding="utf-8"))]


@step
def lacks(row: int) -> int:
    raise ValueError(f"no row {row}")


@flow
def reported(row: int) -> int:
    return lacks(row)


CODE = re.compile(
    r"^\s*(locktender |curl |pip |python |from \w+ import|import \w|@step|@flow|client\.|run\.|with )",
    re.MULTILINE,
)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def wanted(page: Path, *kinds: str) -> list[Block]:
    return [each for each in blocks_of(page) if each.kind in kinds and not each.not_run]


def programs(page: Path) -> list[Block]:
    return [each for each in wanted(page, "python") if not each.file]


def test_every_block_is_of_a_kind_that_is_run_or_says_why_not():
    known = ("python", *SHELL, *DATA, *SQL, *NO_CODE)
    wrong = [
        f"{name(page)}:{each.line} ```{each.kind}"
        for page in PAGES
        for each in blocks_of(page)
        if each.kind.partition(" ")[0] not in known and not each.not_run and not each.file
    ]
    wrong += [
        f"{name(page)}:{each.line} looks like code"
        for page in PAGES
        for each in blocks_of(page)
        if each.kind in ("", "text") and CODE.search(each.code) and not each.not_run
    ]
    assert wrong == [], "run it, or write above it: <!-- not run: REASON -->"


def test_every_file_of_a_page_is_used_by_its_commands():
    unused: list[str] = []
    for page in PAGES:
        typed = "\n".join(each.code for each in wanted(page, *SHELL))
        unused += [
            f"{name(page)}:{each.line} {each.file}"
            for each in blocks_of(page)
            if each.file and not each.not_run and Path(each.file).stem not in typed
        ]
    assert unused == [], "a block that no command reads is not run: say why"


def test_a_reason_names_a_test_that_exists():
    named = [
        (name(page), path)
        for page in pages()
        for each in blocks_of(page)
        for path in re.findall(r"tests/[\w/]+\.py", each.not_run)
    ]
    assert len(named) > 3
    assert [each for each in named if not (ROOT / each[1]).exists()] == []


@pytest.mark.parametrize("page", [each for each in pages() if each not in PAGES], ids=name)
def test_a_page_names_the_test_that_runs_its_blocks(page: Path):
    found = RUN_BY.search(page.read_text(encoding="utf-8"))
    assert found is not None
    assert page.name in (ROOT / found[1]).read_text(encoding="utf-8")


FOLDERS = sorted({each.parent for each in PAGES if programs(each)})


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_programs_run_and_print_what_their_page_says(folder: Path, tmp_path: Path):
    found = [
        (f"{name(page)}:{each.line}", each)
        for page in PAGES
        if page.parent == folder
        for each in programs(page)
    ]
    given = [
        {
            "name": "test_example.py" if "def test_" in each.code else "example.py",
            "folder": str(tmp_path / str(number)),
            "code": each.code,
        }
        for number, (_, each) in enumerate(found)
    ]
    environment = {**os.environ, "API_TOKEN": "0123456789abcdef"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.doc_blocks"],
        input=json.dumps(given),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for (where, block), ran in zip(found, json.loads(done.stdout), strict=True):
        assert ran["code"] == 0, f"{where}\n{ran['out']}{ran['err']}"
        expected = re.findall(r"^ *# prints: (.*)$", block.code, re.MULTILINE)
        if expected:
            assert ran["out"].splitlines() == expected, where


@pytest.mark.parametrize("page", [each for each in PAGES if wanted(each, *DATA)], ids=name)
def test_data_of_a_page_can_be_read(page: Path):
    import tomllib

    for each in wanted(page, *DATA):
        {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}[each.kind](each.code)


@pytest.mark.parametrize("page", [each for each in PAGES if wanted(each, *SQL)], ids=name)
def test_sql_of_a_page_finds_the_runs(page: Path, postgres_url: str):
    with embedded(postgres_url) as engine:
        run = engine.submit(reported, 3, tags={"tenant": "acme"})
        assert run.wait("1m") == "failed"

    async def ask() -> list[dict[str, object]]:
        connection = await asyncpg.connect(postgres_url)
        try:
            async with connection.transaction():
                asked = [await connection.fetch(block) for block in statements]
                return [dict(row) for rows in asked for row in rows]
        finally:
            await connection.close()

    statements = [
        each for block in wanted(page, *SQL) for each in block.code.split(";") if each.strip()
    ]
    counted, failed, waited = asyncio.run(ask())
    assert (counted["flow"], counted["state"], counted["count"]) == (reported.name, "failed", 1)
    assert (failed["step"], failed["example"]) == ("lacks", "no row 3")
    assert waited["tenant"] == "acme"


class Typed:
    """The commands of a page, in order, as one shell; what each printed."""

    def __init__(self, page: Path) -> None:
        self.expected: list[tuple[str, list[str]]] = []
        for block in wanted(page, *SHELL):
            where = f"{name(page)}:{block.line}"
            if block.kind == "sh":
                self.expected.append((block.code, []))
                continue
            for line in block.code.splitlines():
                if line.startswith("$ "):
                    self.expected.append((line.removeprefix("$ "), []))
                else:
                    assert self.expected, f"{where}: output before a command"
                    self.expected[-1][1].append(line)

    def script(self) -> str:
        # `curl` waits for a server that is starting, as a reader does; packages are there.
        head = (
            "set -euo pipefail\n"
            'curl() { for _ in $(seq 400); do local code=0; command curl "$@" || code=$?;\n'
            " [ $code = 7 ] || return $code; sleep 0.25; done; return 7; }\n"  # 7: nobody listens yet
            "pip() { :; }\n"
        )
        return head + "".join(
            f"printf '{MARK}%s\\n' {number}\n{command}\n"
            for number, (command, _) in enumerate(self.expected)
        )

    def check(self, printed: str) -> None:
        parts = dict(part.split("\n", 1) for part in printed.split(MARK)[1:])
        for number, (command, lines) in enumerate(self.expected):
            got = parts.get(str(number), "").splitlines()
            for line in filter(None, (each.strip() for each in lines)):
                pattern = r".*".join(re.escape(part) for part in re.split(r"\s*…\s*|\s{2,}", line))
                assert any(re.fullmatch(pattern, each.strip()) for each in got), (
                    f"{command}\nshould print {line!r}, printed:\n" + "\n".join(got)
                )


def free_port() -> str:
    while True:
        port = 15_000 + int.from_bytes(os.urandom(2), "big") % 15_000
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return str(port)


@pytest.mark.parametrize("page", [each for each in PAGES if wanted(each, *SHELL)], ids=name)
def test_commands_of_a_page_work_in_their_order(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
):
    for each in blocks_of(page):
        if each.file:
            path = tmp_path / each.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(each.code, encoding="utf-8")
            if each.kind == "python":
                compile(each.code, each.file, "exec")
    typed = Typed(page)
    script = typed.script()
    ports = {port: free_port() for port in sorted(set(re.findall(r"\b8[04]\d\d\b", script)))}
    for port, other in ports.items():
        script = re.sub(rf"\b{port}\b", other, script)
    if URL.search(script):
        script = URL.sub(lambda _: f"'{request.getfixturevalue('postgres_url')}'", script)
    environment = {key: each for key, each in os.environ.items() if key != "LOCKTENDER_URL"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["COLUMNS"] = "160"
    output = tmp_path / "output.txt"
    with output.open("wb") as stream:
        shell = subprocess.Popen(
            ["/bin/bash", "-c", script],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(240)
        finally:
            with suppress(ProcessLookupError):  # what the page started with `&`
                os.killpg(shell.pid, signal.SIGKILL)
    printed = output.read_text(encoding="utf-8", errors="replace")
    for port, other in ports.items():
        printed = printed.replace(other, port)
    assert code == 0, printed
    typed.check(printed)
