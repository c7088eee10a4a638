"""`make bench-peers`: ours and the peers in turns, on fresh databases, with one workload; medians and ratios.

    python -m bench.peers [--rounds 5] [--only pgqueuer,absurd,server] [--quick] [--write]

Environments are made in .bench/, one per peer, from bench/peers/requirements/. Results: .bench/peers.json; with
--write also the table in docs/benchmarks-peers.md, the picture in docs/images/ and the medians in
bench/peers/results.json.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

from bench.peers.contenders import REQUIREMENTS, Contender, chosen
from bench.peers.drive import ROOT
from bench.peers.plot import svg
from bench.peers.table import Round, markdown, medians
from bench.report import put_between_markers
from locktender.testing.postgres_server import connected, copy_of, execute, run, server, template

BENCH = ROOT / ".bench"
PAGE = ROOT / "docs" / "benchmarks-peers.md"
RESULTS = ROOT / "bench" / "peers" / "results.json"
PICTURE = ROOT / "docs" / "images" / "benchmarks-peers.svg"
MOST_SECONDS = 240.0


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


def _answer(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"failed": {"all": f"no answer in {MOST_SECONDS:.0f} s"}}
    if done.returncode:
        return {"failed": {"all": "\n".join(done.stderr.splitlines()[-5:])}}
    return {**json.loads(done.stdout.splitlines()[-1]), "took": time.monotonic() - began}


def rounds_of(contenders: list[Contender], count: int, *, quick: bool) -> tuple[list[Round], str]:
    pythons = {each.name: python_of(each) for each in contenders}
    found: list[Round] = []
    with server(durable=True) as url, template(url) as schema:
        version = run(_version(url))
        for number in range(count):
            # Another one begins each time, so that nobody always comes after the same neighbour.
            first = number % len(contenders)
            one: dict[str, dict[str, Any]] = {}
            for each in contenders[first:] + contenders[:first]:
                one[each.name] = measured(each, pythons[each.name], url, schema, quick=quick)
                run(execute(url, "CHECKPOINT"))
                _say(number, each, one[each.name])
            found.append(one)
    return found, version


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
    contenders = chosen([word for word in given.only.split(",") if word])
    if not contenders:
        parser.error(f"nobody is called {given.only}")
    began = time.monotonic()
    rounds, postgres = rounds_of(contenders, given.rounds, quick=given.quick)
    about = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "rounds": len(rounds),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "postgres": postgres,
        "quick": given.quick,
        "seconds": round(time.monotonic() - began),
    }
    found = medians(rounds)
    BENCH.mkdir(exist_ok=True)
    result = {"about": about, "medians": found, "rounds": rounds}
    (BENCH / "peers.json").write_text(json.dumps(result, indent=1) + "\n")
    (BENCH / "peers.svg").write_text(svg(found))
    text = markdown(found, about)
    print(f"\n{text}\n{about['seconds']} s; every round: .bench/peers.json")
    if given.write:
        put_between_markers(
            PAGE, "bench-peers", f"![ours and the peers](images/{PICTURE.name})\n\n{text}"
        )
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(svg(found))
        RESULTS.write_text(json.dumps({"about": about, "medians": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
