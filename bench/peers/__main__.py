"""`make bench-peers`: ours and the peers in turns, on fresh databases, with one workload; medians and ratios.

    python -m bench.peers [--rounds 5] [--only pgqueuer,absurd,server] [--quick] [--write]

Environments are made in .bench/, one per peer, from bench/peers/requirements/. Results: .bench/peers.json, after
each round; with --write (not with --only or --quick) also the table in docs/benchmarks-peers.md, the picture in
docs/images/ and the medians in bench/peers/results.json. The exit code is 1 where a goal has no value.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.peers.contenders import REQUIREMENTS, Contender, chosen
from bench.peers.drive import ROOT
from bench.peers.plot import svg
from bench.peers.table import ALL, Round, goals, markdown, medians
from bench.report import commit, put_between_markers, today, write_whole
from locktender.testing.postgres_server import connected, copy_of, execute, run, server, template

BENCH = ROOT / ".bench"
PAGE = ROOT / "docs" / "benchmarks-peers.md"
RESULTS = ROOT / "bench" / "peers" / "results.json"
PICTURE = ROOT / "docs" / "images" / "benchmarks-peers.svg"
MAX_SECONDS = 240.0
KILLED_SECONDS = 10.0


def python_of(each: Contender) -> Path:
    """The interpreter of its environment, made now if it is not there or its requirements have changed."""
    if not each.environment:
        return Path(sys.executable)
    folder = BENCH / each.environment
    python = folder / "bin" / "python"
    wanted = REQUIREMENTS / f"{each.environment}.txt"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != digest:
        print(
            f"installing {each.environment} {each.version()} into {folder.relative_to(ROOT)}",
            flush=True,
        )
        venv.create(folder, clear=True, with_pip=True)
        install = [str(python), "-m", "pip", "install", "-qq", "--no-deps", "-r", str(wanted)]
        subprocess.run([*install, "--disable-pip-version-check"], check=True)
        stamp.write_text(digest)
    return python


def measured(
    each: Contender, python: Path, postgres: str, schema: str, *, quick: bool
) -> dict[str, Any]:
    command = [str(python), "-m", "bench.peers.drive", each.adapter]
    rest = ["--quick"] if quick else []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if each.store == "sqlite":
            return _answer([*command, folder, *rest])
        # A fresh database for each: ours with its schema in it, as after `locktender db migrate`.
        with copy_of(postgres, schema if each.kind == "ours" else "template1") as own:
            return _answer([*command, own, *rest])


def _answer(command: list[str], most_seconds: float = MAX_SECONDS) -> dict[str, Any]:
    """What the driver measured, or why it failed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    # A session of its own: its worker processes end with it, also those that it could not end.
    driver = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, errors = driver.communicate(timeout=most_seconds)
    except subprocess.TimeoutExpired:
        return _failed(f"no answer in {most_seconds:.0f} s")
    finally:
        _kill_group(driver)
    last = "\n".join(errors.splitlines()[-5:])
    if driver.returncode:
        return _failed(f"the driver ended with {driver.returncode}: {last}")
    try:
        found = json.loads(said.splitlines()[-1] if said.strip() else "")
    except json.JSONDecodeError:
        return _failed(f"the driver printed no result: {last}")
    return {**found, "took": time.monotonic() - began}


def _kill_group(driver: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    # Not for ever: a process that left the group may still hold the pipes.
    with suppress(subprocess.TimeoutExpired):
        driver.communicate(timeout=KILLED_SECONDS)


def _failed(why: str) -> dict[str, Any]:
    return {"failed": {ALL: why}}


def rounds_of(
    contenders: list[Contender], count: int, *, quick: bool
) -> Generator[tuple[Round, str]]:
    """Each round as soon as it is measured, and the version of the PostgreSQL server."""
    pythons = {each.name: _python_or_failure(each) for each in contenders}
    with server(durable=True) as url, template(url) as schema:
        version = run(_version(url))
        for number in range(count):
            one: dict[str, dict[str, Any]] = {}
            # Shuffled, so that no contender always follows the same neighbour, whose work may still be written to
            # the disk; seeded, so that two runs have the same order.
            for each in random.Random(number).sample(contenders, len(contenders)):
                python = pythons[each.name]
                one[each.name] = (
                    measured(each, python, url, schema, quick=quick)
                    if isinstance(python, Path)
                    else _failed(python)
                )
                run(execute(url, "CHECKPOINT"))
                _say(number, each, one[each.name])
            yield one, version


def _python_or_failure(each: Contender) -> Path | str:
    try:
        return python_of(each)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"its environment failed to install: {error}"


async def _version(url: str) -> str:
    async with connected(url) as db:
        return str(await db.fetchval("SHOW server_version")).split()[0]


def _say(number: int, each: Contender, found: dict[str, Any]) -> None:
    print(f"round {number + 1}: {each.name}, {found.get('took', 0):.0f} s", flush=True)
    for what, why in found.get("failed", {}).items():
        print(f"    {what} failed: {why}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="words of names, with commas between them")
    parser.add_argument("--quick", action="store_true", help="small counts: to try the harness")
    parser.add_argument("--write", action="store_true", help="the table and the picture in docs/")
    given = parser.parse_args()
    if given.write and (given.only or given.quick):
        parser.error(
            "--write needs the whole workload of every contender: leave out --only and --quick"
        )
    if given.rounds < 1:
        parser.error("--rounds needs at least 1")
    contenders = chosen([word for word in given.only.split(",") if word])
    if not contenders:
        parser.error(f"nobody is called {given.only}")
    began = time.monotonic()
    about: dict[str, Any] = {
        "date": today(),
        "commit": commit(),
        "arguments": sys.argv[1:],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "quick": given.quick,
    }
    BENCH.mkdir(exist_ok=True)
    rounds: list[Round] = []
    for one, postgres in rounds_of(contenders, given.rounds, quick=given.quick):
        rounds.append(one)
        about |= {
            "rounds": len(rounds),
            "postgres": postgres,
            "seconds": round(time.monotonic() - began),
        }
        # After each round: an interrupted run keeps the rounds that it measured.
        result = {"about": about, "medians": medians(rounds), "rounds": rounds}
        write_whole(BENCH / "peers.json", json.dumps(result, indent=1) + "\n")
    return report(rounds, about, write=given.write)


def report(rounds: list[Round], about: Mapping[str, Any], *, write: bool) -> int:
    """Prints the table. 1 where a goal has no value, though both of its contenders took part."""
    found, picture, text = medians(rounds), svg(medians(rounds)), markdown(rounds, about)
    write_whole(BENCH / "peers.svg", picture)
    print(f"\n{text}\n{about['seconds']} s; every round: .bench/peers.json")
    if write:
        image = f"![ours and the peers](images/{PICTURE.name})"
        put_between_markers(PAGE, "bench-peers", f"{image}\n\n{text}")
        PICTURE.parent.mkdir(exist_ok=True)
        write_whole(PICTURE, picture)
        goals_found = {
            f"{each.ours} ÷ {each.theirs}, {each.measure}": spread and spread._asdict()
            for each, spread in goals(rounds)
        }
        kept = {"about": about, "medians": found, "goals": goals_found}
        write_whole(RESULTS, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    without = [each.title for each, spread in goals(rounds) if spread is None]
    for title in without:
        print(f"failed: no round has a value for the goal: {title}")
    return 1 if without else 0


if __name__ == "__main__":
    sys.exit(main())
