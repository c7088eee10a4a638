"""Cached results from the command line: `cache list`, `show`, `clear`, and how a cached task is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cli_harness import locktender

from locktender import embedded, flow, step
from locktender.testing import check_history, eventually

pytestmark = pytest.mark.timeout(300)


@step(cache="7d", name="pricing:price")
def price(order: str) -> dict[str, int]:
    return {order: 7}


@flow(name="order")
def order(number: str) -> dict[str, int]:
    return price(number)


def test_results_are_listed_shown_and_cleared(tmp_path: Path):
    url = str(tmp_path / "locktender.db")

    def command(*words: str):
        return locktender(*words, "--url", url, cwd=tmp_path)

    with embedded(url) as client:
        client.submit(order, "a-1").result("60s")
        nothing = command("cache", "clear", "--step", "prize")
        assert nothing.code != 0
        assert "no result of step 'prize' is cached" in nothing.err
        cached = client.submit(order, "a-1")
        cached.result("60s")
        listed = command("cache", "list")
        assert "pricing:price" in listed.out
        [kept] = command("cache", "list", "--step", "price", "--json").data
        assert (kept["flow"], kept["scope"], kept["value"]) == ("order", "flow", None)
        shown = command("cache", "show", kept["key"][:8])
        assert '{"a-1":7}' in shown.out
        assert command("cache", "show", kept["key"], "--json").data["value"] == {"a-1": 7}
        assert "cached" in command("runs", "show", cached.id).out
        [task] = command("runs", "show", cached.id, "--tasks", "--json").data["tasks"]
        assert (task["state"], task["cached"], task["attempt"]) == ("completed", True, 0)
        assert "cached" in command("events", cached.id).out
        why = command("why", str(task["id"]))
        assert "completed from the cache" in why.out
        wrong = command("cache", "show", "xyz")
        assert wrong.code == 2
        assert "digits 0-9 and a-f" in wrong.err
        assert command("cache", "list", "--limit", "0").code == 2
        assert command("cache", "clear", "--flow", "order", "--json").data == {"cleared": 1}
        eventually(lambda: client.cache.list() == [])
        assert "No result is cached" in command("cache", "list").out
        assert command("cache", "clear").out.strip() == "0 cached results are forgotten"
    check_history(url)
