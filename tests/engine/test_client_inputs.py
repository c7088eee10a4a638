"""What a client refuses, before anything is stored: each message says what, which and what next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import transports

from locktender import (
    Client,
    InvalidFlow,
    InvalidInput,
    InvalidSettings,
    LocktenderError,
    NotFound,
    StoreError,
    Submission,
    Unserialisable,
    connect,
    embedded,
    flow,
    step,
)


@step
def one(x: int) -> int:
    return x


@flow
def simple(x: int, tags: str = "") -> int:
    return one(x)


@flow
def spread(*xs: int, **named: int) -> int:
    return one(len(xs) + len(named))


@flow
def sloppy(x: int = None, anything=None, several: Iterable[int] = ()) -> int:  # noqa: RUF013
    return one(0 if x is None else x)


@step(pools={"api[{tenant}]": 1})
def tenants_own() -> int:
    return 1


@flow
def keyed() -> int:
    return tenants_own()


@flow(tags={"tenant": "acme"})
def keyed_by_its_own_tag() -> int:
    return tenants_own()


@flow
def broken(x: int) -> int:
    return one(1 // x)


@flow
def windowless() -> Any:
    return one.map([1, 2], window=0)


def plain(x: int) -> int:
    return x


@pytest.fixture(scope="module", params=["sqlite", "http"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    url = tmp_path_factory.mktemp("client") / "locktender.db"
    if request.param == "sqlite":
        with connect(url) as client:
            yield client
    else:
        with transports.server(url) as address, connect(address) as client:
            yield client


SUBMISSIONS: list[tuple[Callable[[Client], Any], type[LocktenderError], str]] = [
    (lambda engine: engine.submit(plain, 1), InvalidInput, "Decorate the function with @flow"),
    (lambda engine: engine.submit(one, 1), InvalidInput, "This is a step"),
    (lambda engine: engine.submit(None), InvalidInput, "only flows can be submitted"),
    (lambda engine: engine.submit("no:such"), NotFound, "there is no flow 'no:such'"),
    (lambda engine: engine.submit(simple), InvalidFlow, r"simple\(x: int, tags: str = ''\) -> int"),
    (lambda engine: engine.submit(simple, 1, 2, 3), InvalidFlow, "too many positional arguments"),
    (lambda engine: engine.submit(simple, 1, y=2), InvalidFlow, "unexpected keyword argument 'y'"),
    (lambda engine: engine.submit(simple, object()), Unserialisable, "cannot take this argument"),
    (lambda engine: engine.submit(simple, {1, object()}), Unserialisable, "x"),
    (
        lambda engine: engine.submit(broken, 0),
        InvalidFlow,
        r"return one\(1 // x\)\): ZeroDivisionError",
    ),
    (lambda engine: engine.submit(simple, 1, tags="acme"), InvalidInput, "tags must be a mapping"),
    (
        lambda engine: engine.submit(simple, 1, tags={"a=b": "c"}),
        InvalidInput,
        "must not contain '='",
    ),
    (lambda engine: engine.submit(simple, 1, tags={"a": "*"}), InvalidInput, r"begin with '\*'"),
    (lambda engine: engine.submit(simple, 1, tags={"a": "b\n"}), InvalidInput, "padded|control"),
    (
        lambda engine: engine.submit(simple, 1, tags={f"k{n}": 1 for n in range(65)}),
        InvalidInput,
        "at most 64 tags",
    ),
    (
        lambda engine: engine.submit(simple, 1, priority="high"),
        InvalidInput,
        "priority must be a whole",
    ),
    (lambda engine: engine.submit(simple, 1, priority=10**9), InvalidInput, "1,000,000 or less"),
    (
        lambda engine: engine.submit(simple, 1, priority=True),
        InvalidInput,
        "priority must be a whole",
    ),
    (lambda engine: engine.submit(simple, 1, key=""), InvalidInput, "key must not be empty"),
    (
        lambda engine: engine.submit(simple, 1, key=" "),
        InvalidInput,
        "key must not be empty or padded",
    ),
    (lambda engine: engine.submit(simple, 1, key="k" * 201), InvalidInput, "longer than 200"),
    (lambda engine: engine.submit(simple, 1, key=7), InvalidInput, "key must be text"),
    (lambda engine: engine.submit(simple, 1, key="a\0b"), InvalidInput, "printable"),
    (lambda engine: engine.submit(simple, 1, key="a\u202eb"), InvalidInput, "printable"),
    (lambda engine: engine.submit(simple, 1, tags={"a": "b\u2028c"}), InvalidInput, "printable"),
    (lambda engine: engine.submit(simple, 1, on_duplicate="reject"), InvalidInput, "needs a key"),
    (
        lambda engine: engine.submit_many(simple, [Submission((1,), on_duplicate="replace")]),
        InvalidInput,
        "needs a key",
    ),
    (lambda engine: one.with_options(pools={"db": 0})(1), InvalidInput, "1 or more"),
    (lambda engine: one.with_options(pools={"db": True})(1), InvalidInput, "whole number"),
    (lambda engine: one.with_options(pools={"db": 1.5})(1), InvalidInput, "whole number"),
    (lambda engine: one.with_options(retries=-1)(1), InvalidInput, "retries must be 0 or more"),
    (lambda engine: engine.submit(windowless), InvalidFlow, "window must be 1 or more"),
    (
        lambda engine: engine.submit(simple, 1, key="k", on_duplicate="atach"),
        InvalidInput,
        "Did you mean 'attach'",
    ),
    (lambda engine: engine.submit(simple, 1, deadline="tomorrow"), InvalidInput, '"1h30m"'),
    (lambda engine: engine.submit(simple, 1, deadline=0), InvalidInput, "more than zero"),
    (
        lambda engine: engine.submit(simple, 1, queue_timeout=-1),
        InvalidInput,
        "queue_timeout must be",
    ),
    (
        lambda engine: engine.submit(simple, 1, dispatch_deadline=True),
        InvalidInput,
        "not a duration",
    ),
    (
        lambda engine: engine.submit_many(simple, [1, (1, "x" * 3_000_000)]),
        InvalidInput,
        r"\[1\]: the arguments",
    ),
    (
        lambda engine: engine.submit(simple, "a"),
        InvalidInput,
        "x is not int: Expected `int`, got `str`",
    ),
    (lambda engine: engine.submit(simple, None), InvalidInput, "x is not int"),
    (lambda engine: engine.submit(simple, x=[1]), InvalidInput, "The annotation asks for int"),
    (lambda engine: engine.submit(spread, 1, "b"), InvalidInput, "xs is not int"),
    (lambda engine: engine.submit(spread, 1, named="b"), InvalidInput, "named is not int"),
    (lambda engine: engine.submit_many(simple, [1, "b"]), InvalidInput, r"\[1\]: x is not int"),
    (
        lambda engine: engine.submit_many(
            simple, [1, Submission((2,)), Submission(kwargs={"x": "b"})]
        ),
        InvalidInput,
        "x is not int",
    ),
    (lambda engine: engine.submit(keyed), InvalidInput, r"submit with tags=\{'tenant': …\}"),
    (lambda engine: engine.submit(keyed, tags={"team": "a"}), InvalidInput, r"'api\[\{tenant\}\]'"),
    (lambda engine: engine.submit_many(simple, [()]), InvalidFlow, "missing a required argument"),
    (
        lambda engine: engine.submit_many(simple, [Submission((1,), deadline="x")]),
        InvalidInput,
        "deadline is not a duration",
    ),
    (lambda engine: engine.submit_many(simple, [1] * 10_001), InvalidInput, "at most 10,000 can"),
]

VERBS: list[tuple[Callable[[Client], Any], type[LocktenderError], str]] = [
    (lambda engine: engine.runs.get(""), NotFound, "not the id of a run"),
    (lambda engine: engine.runs.get("abc"), NotFound, "an id has 26 letters"),
    (lambda engine: engine.runs.find("abc"), InvalidInput, "at least 4 characters"),
    (lambda engine: engine.runs.find(""), NotFound, "not the id of a run"),
    (lambda engine: engine.runs.get("../../etc"), NotFound, "not the id of a run"),
    (lambda engine: engine.runs.get("0" * 26), NotFound, "there is no run"),
    (lambda engine: engine.runs.get(None), NotFound, "not the id of a run"),
    (lambda engine: engine.runs.list(status="runing"), InvalidInput, "Did you mean 'running'"),
    (
        lambda engine: engine.runs.count(status="busy"),
        InvalidInput,
        "A run is submitted, queued, running, .* or rejected",
    ),
    (lambda engine: engine.runs.list(limit=0), InvalidInput, "limit must be 1 or more"),
    (lambda engine: engine.runs.list(limit=10**9), InvalidInput, "100,000 or less"),
    (lambda engine: engine.runs.list(tags=[1]), InvalidInput, "tags must be a mapping"),
    (lambda engine: engine.runs.cancel(), InvalidInput, "say which runs to cancel"),
    (lambda engine: engine.runs.retry(), InvalidInput, "say which runs to retry"),
    (lambda engine: engine.queue.cancel(), InvalidInput, "say which runs to cancel"),
    (lambda engine: engine.queue.reprioritise("0" * 26, "x"), InvalidInput, "priority must be"),
    (lambda engine: engine.why(1 << 40), NotFound, "there is no task"),
    (lambda engine: engine.pools.set("db"), InvalidInput, "say what to set"),
    (lambda engine: engine.pools.set("db", limit=0), InvalidInput, "pools pause NAME"),
    (lambda engine: engine.pools.set("db", limit=-2), InvalidInput, r"-1 \(unlimited\)"),
    (lambda engine: engine.pools.set("db", limit="4"), InvalidInput, "whole number"),
    (lambda engine: engine.pools.set("db", burst=3), InvalidInput, "burst needs a rate"),
    (lambda engine: engine.pools.set("db", rate="fast"), InvalidInput, "60/min"),
    (lambda engine: engine.pools.set("db", rate="5/0s"), InvalidInput, "more than zero"),
    (lambda engine: engine.pools.set("db", lease="long"), InvalidInput, "lease is not a duration"),
    (lambda engine: engine.pools.set("d/b", limit=1), InvalidInput, "looks like a path"),
    (lambda engine: engine.pools.set("api[{x}", limit=1), InvalidInput, "not a pool's name"),
    (lambda engine: engine.pools.get("nobody"), NotFound, "there is no pool"),
    (lambda engine: engine.pools.reset("nobody"), NotFound, "never set"),
    (lambda engine: engine.pools.resume("nobody"), NotFound, "there is no pool"),
    (lambda engine: engine.pools.delete("nobody"), NotFound, "never set"),
    (lambda engine: engine.limits.set_max_concurrent_runs(0), InvalidInput, "limits pause"),
    (lambda engine: engine.limits.set_max_concurrent_runs(2.5), InvalidInput, "whole number"),
    (lambda engine: engine.limits.set_max_active(0), InvalidInput, "must not be 0"),
    (lambda engine: engine.limits.set_tag("tenant"), InvalidInput, "say what to set"),
    (lambda engine: engine.limits.set_tag("tenant", limit=0), InvalidInput, "limits pause TAG"),
    (
        lambda engine: engine.limits.set_tag("tenant", "acme", 1, per_value=True),
        InvalidInput,
        "cannot also be per_value",
    ),
    (lambda engine: engine.limits.set_tag("a=b", limit=1), InvalidInput, "must not contain"),
    (lambda engine: engine.limits.set_fair("tenant", {"a": 0}), InvalidInput, "1 or more"),
    (
        lambda engine: engine.limits.set_fair("tenant", ["a"]),
        InvalidInput,
        "weights must be a mapping",
    ),
    (lambda engine: engine.limits.set("fair", True), InvalidInput, "fair must be text"),
    (lambda engine: engine.limits.set("fair", 7), InvalidInput, "fair must be text"),
    (lambda engine: engine.pools.set("db", limit=2**70), InvalidInput, "or less"),
    (lambda engine: engine.pools.set("d\u202eb", limit=1), InvalidInput, "printable"),
    (lambda engine: engine.pools.set("", limit=1), InvalidInput, "must not be empty"),
    (lambda engine: engine.pools.set("p" * 201, limit=1), InvalidInput, "longer than 200"),
    (lambda engine: engine.limits.set("placement", "scatter"), InvalidInput, "spread, pack"),
    (lambda engine: engine.limits.set("max_bypass", "x"), InvalidInput, "whole number"),
    (lambda engine: engine.limits.set("age_boost", "x"), InvalidInput, "not a duration"),
    (lambda engine: engine.limits.set("tenant=acme", "many"), InvalidInput, "whole number"),
    (lambda engine: engine.limits.pause("max_active"), InvalidInput, "cannot be paused"),
    (lambda engine: engine.limits.resume("tenant"), NotFound, "there is no limit"),
    (lambda engine: engine.limits.reset("max_activ"), NotFound, "Did you mean 'max_active'"),
    (lambda engine: engine.workers.drain("nobody"), NotFound, "there is no worker"),
]


HINTED = (
    r"-1 \(unlimited\)", "1 or more", "whole number", "at most 64 tags", "1,000,000 or less",
    "slots must be 1 or more", "window must be 1 or more", "retries must be 0 or more", "needs a key",
    "key must be text", "key must not be empty", "longer than 200", "must not be empty", "or less",
    "priority must be a whole", "weights must be a mapping", "fair must be text", "padded|control",
)  # fmt: skip
"""Refusals that say what to do besides what is wrong."""


@pytest.mark.parametrize(("use", "error", "said"), [*SUBMISSIONS, *VERBS])
def test_bad_input_is_refused_with_a_hint_and_stores_nothing(engine: Client, use, error, said):
    before = engine.runs.list(), engine.limits.history()
    with pytest.raises(error, match=said) as caught:
        use(engine)
    assert caught.type is error or issubclass(caught.type, error)
    assert set(caught.value.as_dict()) >= {"code", "message", "field", "got", "hint"}
    assert caught.value.hint or said not in HINTED
    assert (engine.runs.list(), engine.limits.history()) == before


def test_arguments_that_fit_their_annotations_are_taken(engine: Client):
    for run in (
        engine.submit(simple, 1),
        engine.submit(sloppy),
        engine.submit(sloppy, 1, {"any": "thing"}, [1, 2]),
        engine.submit(keyed, tags={"tenant": "acme"}),
        engine.submit(keyed_by_its_own_tag),
    ):
        assert run.info().state in {"queued", "running", "succeeded"}


@pytest.mark.parametrize(("n", "said"), [(0, "slots must be 1 or more"), (True, "whole number")])
def test_slots_that_make_no_sense_are_refused(tmp_path: Path, n: Any, said: str):
    with connect(tmp_path / "locktender.db") as engine, pytest.raises(InvalidInput, match=said):
        engine.slots("db", n).__enter__()


def test_arguments_that_only_a_database_takes(tmp_path: Path):
    with connect(tmp_path / "locktender.db") as engine:
        for run in (engine.submit(simple, 10**30), engine.submit(spread, 1, 2, named=3)):
            assert run.info().state == "queued"


def test_an_option_wins_over_a_parameter_of_the_same_name(engine: Client):
    with pytest.raises(InvalidInput, match="tags must be a mapping"):
        engine.submit(simple, 1, tags="meant for the flow")


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("postgresql://u:secret@no-host.invalid/db", StoreError, "host of .* is not known"),
        ("http://u:secret@localhost:8080", InvalidInput, "no user and password|is a server"),
        ("redis://localhost", InvalidInput, "redis:// is not a kind of store"),
        (":memory:", InvalidInput, "not the name of a file"),
        ("", InvalidSettings, "url must be text"),
        (7, InvalidInput, "url must be text or a path"),
    ],
)
@pytest.mark.parametrize("open_", [connect, embedded])
def test_urls_that_are_no_store_are_refused(url, error, said, open_):
    with pytest.raises(error, match=said) as caught:
        open_(url)
    assert "secret" not in str(caught.value.as_dict())
    assert caught.value.hint


def test_files_that_are_no_store_are_refused(tmp_path: Path):
    with pytest.raises(StoreError):
        connect(tmp_path)
    text = tmp_path / "text.db"
    text.write_text("not a database, but long enough to look like one" * 50)
    with pytest.raises(StoreError):
        connect(text)
    with pytest.raises(StoreError):
        connect(text / "below" / "locktender.db")


def test_settings_that_contradict_or_are_unknown_are_refused(tmp_path: Path):
    url = tmp_path / "locktender.db"
    with pytest.raises(
        InvalidSettings, match=r"worker_lease .* must be more than twice heartbeat"
    ) as caught:
        embedded(url, worker_lease="2s", heartbeat="1s")
    assert caught.value.got == {"worker_lease": "2s", "heartbeat": "1s"}
    assert caught.value.hint
    with pytest.raises(InvalidSettings, match="Did you mean 'thread_permits'"):
        embedded(url, threads_permits=3)
    assert not url.exists()
