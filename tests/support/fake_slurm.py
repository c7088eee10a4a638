"""A batch system in one file: `sbatch`, `squeue` and `scancel` as programs, with its state in a folder.

    python fake_slurm.py FOLDER sbatch --parsable --job-name=NAME -- WORD…   a job is a real process
    python fake_slurm.py FOLDER squeue                                       lines: NAME STATE ID
    python fake_slurm.py FOLDER scancel ID

A file in the folder says what goes wrong: `down` (every command fails), `hang` (every
command hangs, with a child in a session of its own), `hold` (jobs stay PENDING).
Nothing of Locktender is imported: the engine and the product share no code.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LOOK_SECONDS = 0.02
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


def main() -> int:
    folder, verb, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    folder.mkdir(parents=True, exist_ok=True)
    if verb == "job":
        return job(folder / words[0], words[1:])
    with (folder / "calls").open("a") as calls:
        calls.write(f"{verb} {os.getpid()}\n")
    if (folder / "hang").exists():
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(3600)", str(folder)],
            start_new_session=True,
        )
        with (folder / "hanging").open("a") as pids:
            pids.write(f"{os.getpid()} {child.pid}\n")
        time.sleep(3600)
    if (folder / "down").exists():
        sys.stderr.write(f"{DOWN}\n")
        return 1
    return {"sbatch": sbatch, "squeue": squeue, "scancel": scancel}[verb](folder, words)


def sbatch(folder: Path, words: list[str]) -> int:
    split = words.index("--")
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words[:split])
    number = 1000 + len(list(folder.glob("job-*")))
    while True:
        try:
            (folder / f"job-{number}").mkdir()
            break
        except FileExistsError:
            number += 1
    place = folder / f"job-{number}"
    (place / "name").write_text(options["job-name"])
    with (place / "out").open("w") as out:
        # As under a batch system: the job is no child of the program that submitted it.
        subprocess.Popen(
            [sys.executable, __file__, str(folder), "job", place.name, *words[split + 1 :]],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    sys.stdout.write(f"{number}\n")
    return 0


def job(place: Path, words: list[str]) -> int:
    while (place.parent / "hold").exists() and not (place / "cancelled").exists():
        time.sleep(LOOK_SECONDS)
    if (place / "cancelled").exists():
        (place / "code").write_text("0")
        return 0
    process = subprocess.Popen(words)
    (place / "pid").write_text(str(process.pid))
    code = process.wait()
    (place / "code").write_text(str(code))
    return code


def squeue(folder: Path, words: list[str]) -> int:
    sys.stdout.write("someone-elses-job RUNNING 7\n")
    for place in sorted(folder.glob("job-*")):
        number = place.name.removeprefix("job-")
        sys.stdout.write(f"{(place / 'name').read_text()} {state(place)} {number}\n")
    return 0


def state(place: Path) -> str:
    if (place / "code").exists():
        if (place / "cancelled").exists():
            return "CANCELLED"
        return "COMPLETED" if (place / "code").read_text() == "0" else "FAILED"
    return "RUNNING" if (place / "pid").exists() else "PENDING"


def scancel(folder: Path, words: list[str]) -> int:
    place = folder / f"job-{words[0]}"
    if not place.exists():
        sys.stderr.write(f"scancel: error: Invalid job id {words[0]}\n")
        return 1
    (place / "cancelled").touch()
    if (place / "pid").exists() and not (place / "code").exists():
        os.kill(int((place / "pid").read_text()), signal.SIGTERM)
    return 0


if __name__ == "__main__":
    sys.exit(main())
