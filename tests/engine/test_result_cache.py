"""`@step(cache=...)`: a call with the same arguments takes the kept result; no body runs, nothing is held."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from locktender import (
    Client,
    InvalidFlow,
    InvalidInput,
    NotFound,
    RunFailed,
    StepError,
    connect,
    embedded,
    flow,
    secret,
    step,
)
from locktender.cli.main import main
from locktender.flows.trace import trace
from locktender.observe.metrics import Metrics
from locktender.observe.prometheus import Exposition
from locktender.testing import Overlap, check_history, eventually, recording

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
TIMEOUT = "60s"
CALLS: Counter[str] = Counter()
FAIL: set[str] = set()


def called(name: str) -> None:
    CALLS[name] += 1
    if name in FAIL:
        raise ValueError(name)


@step(cache="7d", pool="db")
def double(n: int, factor: int = 2) -> int:
    with recording("db"):
        called(f"double {n}")
        return n * factor


@step(cache="7d", cache_scope="everywhere")
async def shared(n: int) -> int:
    called(f"shared {n}")
    return n


@step(cache="7d", cache_key=("name",))
def greet(name: str, polite: bool = False) -> str:
    called(f"greet {name}")
    return f"{'Dear' if polite else 'Hi'} {name}"


def lower(text: str, times: int = 1) -> dict[str, Any]:
    if text == "bad key":
        raise ValueError("no key for it")
    return {"text": text.lower(), "parts": {"b", "a"}, "times": times}


@step(cache="7d", cache_key=lower, pool="db")
def shout(text: str, times: int = 1) -> str:
    called(f"shout {text}")
    return text.upper() * times


@step(cache="1s")
def brief(n: int) -> int:
    called(f"brief {n}")
    return n


@step(cache="7d")
def large(n: int) -> list[str]:
    called(f"large {n}")
    return ["x" * 1_000] * 300


@step
def count(items: list[str]) -> int:
    return len(items)


@step(cache="7d")
def takes_secret(token: str) -> int:
    called("takes_secret")
    return len(token)


@flow
def one(n: int) -> int:
    return double(n)


@flow
def other(n: int) -> list[int]:
    return [double(n), shared(n)]


@flow
def share(n: int) -> int:
    return shared(n)


@flow
def named(name: str, polite: bool) -> str:
    return greet(name, polite=polite)


@flow
def mapped(ns: list[int]) -> list[int]:
    return double.map(double.map(ns), factor=3)


@flow
def shouts(texts: list[str]) -> list[Any]:
    return [shout(texts[0]), shout.map(texts, times=2, on_error="collect")]


@flow
def briefly(n: int) -> int:
    return brief(n)


@flow
def many(n: int) -> list[Any]:
    found = large(n)
    return [count(found), found[0]]


@flow
def with_secret(token: Any) -> int:
    return takes_secret(token)


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    FAIL.clear()


@pytest.fixture
def either(store_url: str) -> Iterator[Client]:
    with embedded(store_url, grace="2s") as client:
        yield client
    check_history(store_url)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    url = str(tmp_path / "locktender.db")
    with embedded(url, grace="2s") as client:
        yield client
    check_history(url)


def states(run: Any) -> list[tuple[str, str, bool, int]]:
    return [(task.name, task.state, task.cached, task.attempt) for task in run.tasks()]


def test_the_second_call_takes_the_result_of_the_first(either: Client):
    first = either.submit(one, 3)
    assert first.result(TIMEOUT) == 6
    again = either.submit(one, 3)
    assert again.result(TIMEOUT) == 6
    assert CALLS == {"double 3": 1}
    assert states(first) == [("double", "completed", False, 1)]
    assert states(again) == [("double", "completed", True, 0)]
    [task] = again.tasks()
    assert (task.worker, task.started_at, dict(task.pools)) == (None, None, {})
    [made] = first.tasks()
    assert f"task {made.id} made the result" in str(either.why(task.id))
    [end] = [each for each in again.events() if "cached" in each.data]
    assert (end.after, end.data["cached"]["task"]) == ("completed", made.id)
    # another argument, and the default written out
    assert either.submit(one, 4).result(TIMEOUT) == 8
    assert CALLS == {"double 3": 1, "double 4": 1}
    [kept] = either.cache.list(step="double")[1:]
    assert either.cache.get(kept.key[:10]).value == 6


def test_a_hit_passes_a_paused_pool_and_a_miss_does_not(client: Client):
    client.pools.set("db", limit=1)
    assert client.submit(one, 3).result(TIMEOUT) == 6
    client.pools.pause("db")
    assert client.submit(one, 3).result(TIMEOUT) == 6
    waits = client.submit(one, 5)
    eventually(lambda: "pool db is paused" in str(waits.why()))
    client.pools.resume("db")
    assert waits.result(TIMEOUT) == 10


def test_a_scope_is_the_flow_or_everything(client: Client):
    assert client.submit(share, 1).result(TIMEOUT) == 1
    assert client.submit(one, 1).result(TIMEOUT) == 2
    assert client.submit(other, 1).result(TIMEOUT) == [2, 1]
    assert CALLS == {"shared 1": 1, "double 1": 2}


def test_arguments_that_the_key_does_not_name_do_not_count(client: Client):
    assert client.submit(named, "ann", False).result(TIMEOUT) == "Hi ann"
    assert client.submit(named, "ann", True).result(TIMEOUT) == "Hi ann"
    assert CALLS == {"greet ann": 1}


def test_each_item_of_a_map_has_its_own_key(either: Client):
    assert either.submit(mapped, [1, 2]).result(TIMEOUT) == [6, 12]
    assert either.submit(mapped, [2, 1, 5]).result(TIMEOUT) == [12, 6, 30]
    # 2, 4 by 2 and by 3; 10 and 5
    assert CALLS == {"double 1": 1, "double 2": 2, "double 4": 1, "double 5": 1, "double 10": 1}


def test_a_function_of_the_arguments_is_the_key(either: Client):
    assert either.submit(shouts, ["Ab", "cd"]).result(TIMEOUT) == ["AB", ["ABAB", "CDCD"]]
    run = either.submit(shouts, ["aB", "bad key"])
    result = run.result(TIMEOUT)
    assert result[0] == "AB"
    assert result[1][0] == "ABAB"
    assert isinstance(result[1][1], StepError)
    assert "no key for it" in str(result[1][1])
    assert CALLS == {"shout Ab": 2, "shout cd": 1}
    assert [each for each in states(run) if ".key" not in each[0]] == [
        ("shout", "completed", True, 0),
        ("shout-2", "completed", True, 0),
        ("shout-2", "failed", False, 0),
    ]
    with pytest.raises(RunFailed, match="no key for it"):
        either.submit(shouts, ["bad key"]).result(TIMEOUT)


def test_failed_results_are_not_kept_and_a_retry_runs_the_step(either: Client):
    FAIL.add("double 3")
    failed = either.submit(one, 3)
    with pytest.raises(RunFailed):
        failed.result(TIMEOUT)
    assert either.cache.list() == []
    FAIL.clear()
    assert either.submit(one, 3).result(TIMEOUT) == 6
    assert failed.retry().result(TIMEOUT) == 6
    assert CALLS["double 3"] == 3
    hit = either.submit(one, 3)
    assert hit.result(TIMEOUT) == 6
    assert states(hit) == [("double", "completed", True, 0)]
    assert hit.retry(from_step="double").result(TIMEOUT) == 6
    assert states(hit) == [("double", "completed", False, 1)]
    assert CALLS["double 3"] == 4


def test_cleared_results_are_forgotten_for_later_runs(either: Client):
    for n in (1, 2):
        either.submit(other, n).result(TIMEOUT)
    assert len(either.cache.list()) == 4
    assert either.cache.clear(step="double") == 2
    either.submit(other, 1).result(TIMEOUT)
    assert CALLS == {"double 1": 2, "double 2": 1, "shared 1": 1, "shared 2": 1}
    assert either.cache.clear(flow="other") == 3
    either.submit(other, 1).result(TIMEOUT)
    assert CALLS["shared 1"] == 2
    assert either.cache.clear() == 2
    eventually(lambda: either.cache.list() == [])
    with pytest.raises(NotFound) as refused:
        either.cache.clear(step="nobody")
    assert (refused.value.field, refused.value.got) == ("step", "nobody")


def test_a_result_is_not_taken_after_its_time(client: Client):
    assert client.submit(briefly, 1).result(TIMEOUT) == 1
    [kept] = client.cache.list()
    assert (kept.expires_at - kept.made_at).total_seconds() == 1
    eventually(lambda: client.cache.list() == [])
    assert client.submit(briefly, 1).result(TIMEOUT) == 1
    assert CALLS == {"brief 1": 2}


def test_large_results_are_kept_too(either: Client):
    for _ in range(2):
        assert either.submit(many, 1).result(TIMEOUT) == [300, "x" * 1_000]
    assert CALLS == {"large 1": 1}
    [kept] = either.cache.list()
    assert kept.size > 300_000
    assert len(either.cache.get(kept.key).value) == 300


def test_a_secret_is_in_no_key_and_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHOP_TOKEN", "hunter2hunter2")
    url = tmp_path / "locktender.db"
    with embedded(url) as client:
        for _ in range(2):
            assert client.submit(with_secret, secret("env:SHOP_TOKEN")).result(TIMEOUT) == 14
    assert CALLS == {"takes_secret": 1}
    with sqlite3.connect(url) as db:
        assert not any("hunter2" in line for line in db.iterdump())


def test_two_at_once_both_run_and_the_later_result_is_kept(client: Client, overlap: Overlap):
    client.pools.set("db", limit=1)
    runs = [client.submit(one, 7) for _ in range(4)]
    assert [run.result(TIMEOUT) for run in runs] == [14] * 4
    assert 1 <= CALLS["double 7"] <= 4
    assert overlap.peak("db") == 1
    assert len(client.cache.list()) == 1


def test_lookups_are_counted():
    metrics = Metrics()
    metrics.looked_up(3, 2)
    shown = Exposition(metrics, may_lead=True)
    shown.refresh()
    assert 'locktender_cache_lookups_total{result="hit"} 3' in shown.text().decode()
    assert 'locktender_cache_lookups_total{result="miss"} 2' in shown.text().decode()


def test_who_is_only_a_client_sees_and_clears_results(store_url: str):
    with embedded(store_url) as client:
        client.submit(one, 1).result(TIMEOUT)
    with connect(store_url) as only:
        [kept] = only.cache.list(flow="one")
        assert kept.step.endswith(":double")
        with pytest.raises(InvalidInput) as refused:
            only.cache.get("no key")
        assert refused.value.field == "key"
        with pytest.raises(NotFound):
            only.cache.get("0" * 64 if kept.key[0] != "0" else "f" * 64)
        assert only.cache.clear() == 1
    # nobody led: the next leader carries it out before anything is looked up
    CALLS.clear()
    with embedded(store_url) as client:
        client.submit(one, 1).result(TIMEOUT)
    assert CALLS == {"double 1": 1}
    check_history(store_url)


def test_a_run_submitted_by_name_takes_the_same_results(client: Client):
    given = ["Ab", "cd"]
    assert client.submit(shouts, given).result(TIMEOUT) == ["AB", ["ABAB", "CDCD"]]
    CALLS.clear()
    named = client.submit(shouts.name, {"texts": given})
    assert named.result(TIMEOUT) == ["AB", ["ABAB", "CDCD"]]
    assert CALLS == {}


def test_a_result_that_cannot_be_read_is_none(tmp_path: Path):
    url = tmp_path / "locktender.db"
    for column, value in (("expires_at", "soon"), ("output", 7), ("task", -1), ("size", None)):
        with embedded(url) as client:
            client.submit(one, 1).result(TIMEOUT)
        with sqlite3.connect(url) as db:
            if value is None:
                db.execute("DELETE FROM cached_result")
            else:
                db.execute(f"UPDATE cached_result SET {column} = ?", [value])
    assert CALLS == {"double 1": 4}
    check_history(url)


def test_a_result_outlives_the_run_that_made_it(store_url: str):
    with embedded(store_url) as client:
        made = client.submit(many, 1)
        made.result(TIMEOUT)
    assert main(["db", "prune", "--older-than", "0s", "--url", store_url]) == 0
    with embedded(store_url) as client:
        with pytest.raises(NotFound):
            client.runs.get(made.id)
        assert client.submit(many, 1).result(TIMEOUT) == [300, "x" * 1_000]
    assert CALLS == {"large 1": 1}
    check_history(store_url)


async def generator(n: int) -> Any:
    yield n


def plain(n: int) -> int:
    return n


@pytest.mark.parametrize(
    ("given", "field", "text"),
    [
        ({"cache": -1}, "cache", "more than zero"),
        ({"cache": "0s"}, "cache", "more than zero"),
        ({"cache": "146000d"}, "cache", "under 100 years"),
        ({"cache": "soon"}, "cache", "not a duration"),
        ({"cache": True}, "cache", "not a duration"),
        ({"cache_key": "n"}, "cache_key", "without cache"),
        ({"cache_scope": "everywhere"}, "cache_scope", "without cache"),
        ({"cache": "1d", "cache_key": "m"}, "cache_key", "no argument 'm'"),
        ({"cache": "1d", "cache_key": ("n", 3)}, "cache_key", "no argument 3"),
        ({"cache": "1d", "cache_key": ()}, "cache_key", "names of arguments or a function"),
        ({"cache": "1d", "cache_key": 7}, "cache_key", "names of arguments or a function"),
        ({"cache": "1d", "cache_key": {"n": 1}}, "cache_key", "names of arguments or a function"),
        ({"cache": "1d", "cache_key": lambda: 1}, "cache_key", "cannot be called with its"),
        ({"cache": "1d", "cache_key": asyncio.sleep}, "cache_key", "plain function"),
        ({"cache": "1d", "cache_key": generator}, "cache_key", "generator"),
        ({"cache": "1d", "cache_key": double}, "cache_key", "plain function"),
        ({"cache": "1d", "cache_scope": "run"}, "cache_scope", "one of flow, everywhere"),
        ({"cache": "1d", "cache_version": 2}, "cache_version", "no option"),
    ],
)
def test_wrong_options_are_refused_with_field_and_hint(given: Any, field: str, text: str):
    with pytest.raises((InvalidFlow, InvalidInput)) as refused:
        step(**given)(plain)
    assert refused.value.field == field
    assert text in refused.value.message
    assert refused.value.hint


def test_calls_whose_result_cannot_be_cached_are_refused():
    @step(cache="1d", name="may be an error")
    def robust(n: int | StepError) -> int:
        return 0

    @flow
    def takes_errors(ns: list[int]) -> list[int]:
        return robust.map(ns, take_errors=True)

    @flow
    def cleans_up(n: int) -> int:
        return double.with_options(run_if="always")(n)

    @flow
    def keyed(n: int) -> int:
        return double.with_options(cache_key=plain)(n)  # pyright: ignore[reportArgumentType]

    for flow_, field in ((takes_errors, "take_errors"), (cleans_up, "cache"), (keyed, "cache_key")):
        argument: Any = [1] if flow_ is takes_errors else 1
        with pytest.raises(InvalidFlow) as refused:
            trace(flow_.definition, (argument,), {})
        assert refused.value.field == field
        assert refused.value.hint


def test_a_call_can_have_its_own_rule_or_none(tmp_path: Path):
    @flow
    def calls(n: int) -> list[int]:
        return [double.with_options(cache=None)(n), double.with_options(cache="1h", name="h")(n)]

    with embedded(tmp_path / "locktender.db") as client:
        for _ in range(2):
            assert client.submit(calls, 1).result(TIMEOUT) == [2, 2]
    assert CALLS == {"double 1": 3}


def test_a_key_that_cannot_be_encoded_fails_the_run_and_says_so(tmp_path: Path):
    @step(cache="1d", cache_key=lambda n: object(), name="odd key")
    def odd(n: int) -> int:
        return n

    @flow
    def oddly(n: int) -> int:
        return odd(n)

    with (
        embedded(tmp_path / "locktender.db") as client,
        pytest.raises(RunFailed, match="cache_key of step 'odd key' returned a value"),
    ):
        client.submit(oddly, 1).result(TIMEOUT)
