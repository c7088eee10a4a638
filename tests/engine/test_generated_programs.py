"""Generated programs do what an independent oracle says, and small ones that once did not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.generated import (
    Place,
    cluster_place,
    drive,
    embedded_place,
    judge_place,
    run_seeds,
    told,
)
from tests.support.programs import FOR_GOOD, Call, Program

from locktender.kernel import expansion
from locktender.testing.postgres_server import copy_of

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

ONCE, TWICE = [{"cancel_after": None, "force": False}], [{"cancel_after": None, "force": False}] * 2
KILLS = 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder: Path = tmp_path_factory.mktemp("programs")
    with embedded_place(str(folder / "locktender.db"), folder) as made:
        yield made
        assert judge_place(made) == []


def call(name: str, *, failures: int | list[int] = 0, how: str = "error", **given: Any) -> Call:
    """A call that fails so often and then succeeds; of a map, each item as its own digest chooses."""
    several = failures if isinstance(failures, list) else [failures]
    size = {"size": given.pop("size")} if "size" in given else {}
    usual: Call = {"body": "async", "over": None, "args": [], "after": [], "when": None}
    usual |= {"run_if": "success", "on_failure": None, "retries": 0, "timeout": None, "pools": {}}
    usual |= {"window": None, "on_error": "fail", "take_errors": False, "handler_takes": False}
    plan = {"how": how, "pause": 0, "failures": several, "bounds": [], **size}
    return {**usual, "name": name, "plan": plan, **given}


def program(*calls: Call, tries: list[dict[str, Any]] = ONCE, **given: Any) -> Program:
    usual: Program = {"seed": -1, "name": "small", "sequential": False, "on_failure": None}
    usual |= {"fail": "continue", "max_parallel": None, "handler_takes": False}
    return {**usual, "calls": list(calls), "tries": tries, **given}


SMALL: dict[str, Program] = {
    "errors pass on through maps, in every try": program(
        call("a", over=[1, 2, 3, 4], failures=[FOR_GOOD, 0], on_error="collect"),
        call("b", over="a", failures=[0, 1], on_error="collect"),
        call("c", over="b", window=1),
        call("d", args=["c"]),
        call("e", over="c", take_errors=True, after=["d"]),
        call("f", failures=FOR_GOOD, after=["e"]),
        tries=TWICE,
    ),
    "errors pass on in a map that fails": program(
        call("a", over=[1, 2, 3, 4], failures=[FOR_GOOD, 0], on_error="collect"),
        call("b", over="a", failures=1),
        call("c", args=["b"], run_if="always"),
        call("d", over="b", run_if="always"),
        tries=TWICE,
    ),
    "a failure handler is given what failed": program(
        call("a"),
        call("b", over=[1, 2], failures=FOR_GOOD, on_failure="succeeds", handler_takes=True),
        call("c", failures=FOR_GOOD, on_failure="fails", handler_takes=True),
        on_failure="succeeds",
        handler_takes=True,
        tries=TWICE,
    ),
    "a failure handler runs in every try that fails": program(
        call("a", failures=FOR_GOOD, on_failure="succeeds"), tries=TWICE
    ),
    "a retried map gets the arguments of this try": program(
        call("a", failures=1),
        call("b", over=[1, 2], args=["a"], run_if="always"),
        tries=TWICE,
    ),
    "a clean-up of which one item completed is done again": program(
        call("a", over=[1, 3]),
        call("b", over="a", run_if="always", failures=[0, 1, 0, 1]),
        call("c", failures=1),
        tries=TWICE,
    ),
    "a retry keeps collected errors and what was made of them": program(
        call("a", over=[1, 2], failures=1, on_error="collect"),
        call("b", args=["a"]),
        call("c", failures=1),
        tries=TWICE,
    ),
    "what took the errors of a clean-up goes with it": program(
        call("a", failures=1),
        call("b", over=[1, 2], args=["a"], run_if="failure", failures=FOR_GOOD, on_error="collect"),
        call("c", args=["b"]),
        call("d", args=["c"]),
        tries=TWICE,
    ),
    "what followed a clean-up without items goes with it": program(
        call("a", failures=1),
        call("b", over=[], args=["a"], run_if="failure"),
        call("c", args=["b"]),
        call("d", over=[1, 2], args=["c"]),
        tries=TWICE,
    ),
    "a step behind a clean-up that was skipped keeps its result": program(
        call("a", on_failure="succeeds"),
        call("b", after=["a"]),
        call("c", failures=1),
        sequential=True,
        tries=TWICE,
    ),
    "items of a sequential map go in order, however what they follow ended": program(
        call("a", over=[1, 2, 3], how="held", failures=1),
        call("b", over="a", run_if="always", failures=1, retries=1, on_error="collect"),
        sequential=True,
    ),
    "a clean-up over a list that is not there is skipped": program(
        call("a", failures=FOR_GOOD, size=2),
        call("b", over="a", run_if="always"),
        call("c"),
        call("d", args=["c"]),
    ),
    "a clean-up does not hide a failure from a sequential flow": program(
        call("a", failures=FOR_GOOD),
        call("b", run_if="always"),
        call("c"),
        sequential=True,
    ),
    "a sequential flow runs handler and clean-up one by one": program(
        call("a", failures=FOR_GOOD, on_failure="succeeds"),
        call("b"),
        call("c", run_if="always"),
        sequential=True,
    ),
    "a step behind a skipped and a failed one is tainted": program(
        call("a"),
        call("b", when={"of": "a", "op": "==", "value": -1}),
        call("c", failures=FOR_GOOD),
        call("d", args=["b", "c"]),
        call("e", after=["d"]),
    ),
    "a cancelled run cleans up after what is in flight": program(
        call("a", how="held", failures=1),
        call("b", args=["a"]),
        call("c", after=["b"], run_if="always"),
    ),
    "a clean-up waits for the map that a skipped map follows": program(
        call("a", failures=FOR_GOOD),
        call("b", over=[1, 2], window=1),
        call("c", over="b", args=["a"]),
        call("d", after=["c"], run_if="always"),
    ),
    "a map after a failed map runs for each of its items": program(
        call("a", over=[1, 2, 3], failures=[0, 0, FOR_GOOD, 0], window=1),
        call("b", over="a", run_if="failure"),
    ),
    "a flow that fails fast runs its failure handler": program(
        call("a", failures=FOR_GOOD),
        call("b", how="held", failures=1),
        fail="fast",
        on_failure="succeeds",
    ),
    "a map without items is not skipped when it is retried": program(
        call("a", failures=1),
        call("b", over=[], args=["a"]),
        call("c", args=["b"]),
        tries=TWICE,
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_small(place: Place, name: str):
    wrong = drive(place.client, SMALL[name], lambda: 0)

    assert wrong is None, told([wrong], "sqlite")


def test_many_at_once(place: Place):
    wrong = run_seeds(place, range(60))

    assert wrong == [], told(wrong, "sqlite")


def test_with_maps_expanded_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(expansion, "ITEMS_PER_CYCLE", 1)
    with embedded_place(str(tmp_path / "locktender.db"), tmp_path) as made:
        wrong = run_seeds(made, range(200, 230))
        assert wrong == [], told(wrong, "sqlite")
        assert judge_place(made) == []


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("kills", [0, KILLS])
@pytest.mark.parametrize("more", [False, pytest.param(True, marks=pytest.mark.long)])
def test_on_a_server_and_workers(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, kills: int, more: bool
):
    """Also while the server or a worker is killed now and then, and another one started."""
    seeds = range(10_000, 10_000 + (60 if more else 8))
    if not more and kills and kind == "sqlite":
        pytest.skip("one store with kills is enough of a sample; make test-long has both")
    with ExitStack() as opened:
        url = str(tmp_path / "locktender.db")
        if kind == "postgres":
            server: str = request.getfixturevalue("postgres_server")
            template: str = request.getfixturevalue("postgres_template")
            url = opened.enter_context(copy_of(server, template))
        made = opened.enter_context(cluster_place(url, tmp_path))
        wrong = run_seeds(made, seeds, kills=kills)
        assert wrong == [], told(wrong, f"cluster-{kind}")
        assert judge_place(made) == []


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 1100, 100))
def test_more_seeds(place: Place, first: int):
    wrong = run_seeds(place, range(first, first + 100))

    assert wrong == [], told(wrong, "sqlite")


def test_embedded_on_postgres(postgres_url: str, tmp_path: Path):
    with embedded_place(postgres_url, tmp_path) as made:
        wrong = run_seeds(made, range(20))
        assert wrong == [], told(wrong, "postgres")
        assert judge_place(made) == []
