"""Two operators who change one limit at the same time lose nothing of each other's change."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_harness import locktender

from locktender import Client, LimitChanged, connect, embedded

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]


def test_changes_of_one_limit_at_once_are_all_in_force(store_url: str, tmp_path: Path):
    with embedded(store_url), connect(store_url) as one, connect(store_url) as other:
        one.pools.set("db", 4)

        def both(first: Any, second: Any) -> None:
            with ThreadPoolExecutor(2) as at_once:
                for done in [at_once.submit(first), at_once.submit(second)]:
                    done.result(90)

        for n in range(5, 15):
            both(lambda n=n: one.pools.set("db", n), lambda n=n: other.pools.set("db", lease=n))
            pool = one.pools.get("db")
            assert (pool.limit, pool.lease) == (n, n)
            both(
                lambda n=n: one.limits.set_fair("tenant", {"acme": n}),
                lambda n=n: other.limits.set_fair("tenant", {"beta": n}),
            )
            fair = next(each for each in one.limits.list() if each.kind == "fair")
            assert f"acme={n}" in fair.value.replace(" ", "").replace("×", "="), fair
            assert f"beta={n}" in fair.value.replace(" ", "").replace("×", "="), fair


def test_of_two_that_saw_the_same_limit_one_is_refused(store_url: str, tmp_path: Path):
    with embedded(store_url), connect(store_url) as one, connect(store_url) as other:
        one.pools.set("db", 4)

        def raised(client: Client, to: int) -> bool:
            try:
                client.pools.set("db", to, expected=4)
            except LimitChanged:
                return False
            return True

        with ThreadPoolExecutor(2) as at_once:
            several = [at_once.submit(raised, one, 6), at_once.submit(raised, other, 8)]
            won = [each.result(90) for each in several]
        assert sorted(won) == [False, True]
        assert one.pools.get("db").limit == (6 if won[0] else 8)
        one.limits.set_max_concurrent_runs(7, expected=10)
        with pytest.raises(LimitChanged, match="is 7, not 10"):
            other.limits.set("max_concurrent_runs", 9, expected=10)
        one.limits.set_tag("tenant", "acme", 2, expected=-1)
        one.pools.set("api[*]", 3)
        one.pools.set("api[acme]", 5, expected=3)
        refused = locktender(
            "pools", "set", "db", "9", "--if", "4", "--url", str(store_url), cwd=tmp_path
        )
        assert refused.code == 1
        assert "it was changed meanwhile" in refused.err
        args = ("limits", "set", "max_concurrent_runs", "3", "--if", "7", "--url", str(store_url))
        assert locktender(*args, cwd=tmp_path).code == 0
