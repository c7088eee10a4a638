"""Errors collected, and a clean-up that always runs.

    python examples/collect_and_clean_up.py
    locktender run examples/collect_and_clean_up.py:ingest --arg rows=10

With on_error="collect" a bad row does not fail the others: it arrives as a
StepError in the list. The next map is not called for it and passes it on. The
scratch folder is removed whatever happens.
"""

import shutil
import tempfile
from pathlib import Path

from locktender import Fatal, StepError, flow, step


@step
def make_scratch() -> str:
    return tempfile.mkdtemp(prefix="locktender-example-")


@step(retries=2, retry_delay="10ms", retry_on=OSError)
def check(row: int, scratch: str) -> int:
    if row % 4 == 3:
        raise Fatal(f"row {row} is broken")  # another attempt cannot help
    Path(scratch, f"{row}.txt").write_text(str(row))
    return row


@step
def read(row: int, scratch: str) -> int:
    return int(Path(scratch, f"{row}.txt").read_text())


@step
def summarise(rows: list[int | StepError]) -> dict[str, int]:
    bad = sum(isinstance(row, StepError) for row in rows)
    return {"good": len(rows) - bad, "bad": bad}


@step
def remove(scratch: str) -> None:
    shutil.rmtree(scratch)


@flow
def ingest(rows: int = 10) -> dict[str, int]:
    scratch = make_scratch()
    checked = check.map(range(rows), on_error="collect", scratch=scratch)
    summary = summarise(read.map(checked, scratch=scratch))  # read is not called for an error
    remove.with_options(after=[summary], run_if="always")(scratch)
    return summary


if __name__ == "__main__":
    print(ingest.run())
