"""A body in a thread that hears nothing, and uses its work directory until its process is gone."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

from locktender import current, flow, step


@step
def scribble(folder: str) -> None:
    workdir = current(required=True).workdir
    (Path(folder) / "where").write_text(str(workdir))
    for n in count():
        if workdir.exists():
            (workdir / f"file-{n % 100}").touch()
        time.sleep(0.001)


@flow
def scribbling(folder: str) -> None:
    return scribble(folder)
