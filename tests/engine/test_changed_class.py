"""A class whose fields change while a run waits: the task says which field of which argument does not fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHOP = """
import sys
import msgspec
from locktender import RunFailed, connect, embedded, flow, step

class Order(msgspec.Struct):
    total: int
    {field}

@step(name="charge")
def charge(order: Order) -> int:
    return order.total

@flow(name="sell")
def sell(order: Order) -> int:
    return charge(order)

if __name__ == "__main__":
    url, *ids = sys.argv[1:]
    if not ids:
        with connect(url) as client:
            print(client.submit(sell, Order(3)).id)
    else:
        with embedded(url) as engine:
            run = engine.runs.get(ids[0])
            if ids[1:]:
                run.retry()
            try:
                print(run.result("60s"))
            except RunFailed as failed:
                print(failed.error_type, failed.error_message)
"""


def test_a_stored_argument_of_a_changed_class(tmp_path: Path):
    def call(field: str, *words: str) -> str:
        script = tmp_path / "shop.py"
        script.write_text(SHOP.format(field=field))
        done = subprocess.run(
            [sys.executable, script, tmp_path / "shop.db", *words],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        return done.stdout.strip()

    run = call("")
    said = call("currency: str", run)
    assert said.startswith("argument_mismatch the stored argument 'order' of step 'charge'")
    assert "field 'currency'" in said
    assert "retry" in said
    # What it tells to do: the run goes on from there.
    assert call("currency: str = 'EUR'", run, "retry") == "3"
