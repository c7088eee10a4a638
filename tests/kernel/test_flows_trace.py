"""Tracing: what a flow's body wires together becomes a graph without values."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

from locktender.base import codec
from locktender.base.codec import StepError
from locktender.base.errors import InvalidFlow, Unserialisable
from locktender.base.graph import (
    GRAPH_VERSION,
    AllOf,
    AnyOf,
    Compare,
    Const,
    DictOf,
    FailureOf,
    Graph,
    Item,
    ListOf,
    Node,
    Not,
    Output,
    Param,
    PoolNeed,
    Tag,
    Truthy,
)
from locktender.flows.flows import flow
from locktender.flows.handles import Handle, as_handle, not_
from locktender.flows.steps import step
from locktender.flows.trace import Traced, trace
from locktender.flows.tracer import current


@dataclass
class Stats:
    lines: int
    name: str


class Pair(NamedTuple):
    left: int
    right: Stats


class Model(pydantic.BaseModel):
    size: int


@step
async def download(accession: str) -> str: ...


@step
def index(path: str, depth: int = 1) -> int: ...


@step
def join(parts: Any, extra: Any = None) -> Any: ...


@step
def measure(path: str) -> Stats: ...


@step
def pair() -> Pair: ...


@step
def model() -> Model: ...


@step(pools={"api[{tenant}]": 1, "db[{region}-x-{path}]": 2}, retries=2, timeout="1m")
def keyed(path: str, region: str = "eu") -> None: ...


@step
def tidy() -> None: ...


def traced(body: Any, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> Traced:
    """The trace of a flow made of `body` here and now."""
    return trace(flow(**(options or {}))(body), args, kwargs)


def nodes(body: Any, *args: Any, **kwargs: Any) -> tuple[Node, ...]:
    return traced(body, *args, **kwargs).graph.nodes


def by_name(found: tuple[Node, ...]) -> dict[str, Node]:
    return {node.name: node for node in found}


def consts(result: Traced) -> list[Any]:
    return codec.decode(result.consts)


def test_a_map_over_a_map_is_wired_by_templates():
    def build(accessions: list[str]):
        files = download.map(accessions, window=3)
        return index.map(files, depth=2, on_error="collect")

    result = traced(build, ["a", "b"])

    first, second = result.graph.nodes
    assert (first.name, first.over, first.args) == ("download", Param("accessions"), (Item(),))
    assert (first.window, first.executor, first.on_error) == (3, "async", "fail")
    assert (second.over, second.args, second.kwargs) == (
        Output(0),
        (Item(),),
        {"depth": Const(0)},
    )
    assert second.on_error == "collect"
    assert result.graph.result == Output(1)
    assert codec.decode(result.params) == {"accessions": ["a", "b"]}
    assert consts(result) == [2]
    assert msgspec.json.decode(result.body, type=Graph) == result.graph


def test_runs_with_other_values_share_one_graph():
    def build(path: str, deep: int = 500):
        return join([index(path, deep), path], extra={"k": path, "c": "const"})

    one, other = traced(build, "a" * 3), traced(build, "b" * 4, deep=7_000)
    assert one.digest == other.digest
    assert codec.decode(one.params) == {"path": "aaa", "deep": 500}
    assert codec.decode(other.params) == {"path": "bbbb", "deep": 7_000}


def test_a_parameter_is_known_by_identity_not_by_value():
    def build(items: list[int], flag: bool, nothing: None):
        join(items)
        join(list(items))
        join(flag, nothing)

    result = traced(build, [1, 2], True, None)
    assert [node.args for node in result.graph.nodes] == [
        (Param("items"),),
        (Const(0),),
        (Const(1), Const(2)),
    ]
    assert consts(result) == [[1, 2], True, None]


def test_constants_are_hoisted_once_but_never_stale():
    def build():
        batch = [1]
        join(batch, "shared text")
        batch.append(2)
        join(batch, "shared text")

    result = traced(build)
    assert [node.args for node in result.graph.nodes] == [
        (Const(0), Const(1)),
        (Const(2), Const(1)),
    ]
    assert consts(result) == [[1], "shared text", [1, 2]]


def test_handles_may_be_nested_in_arguments_and_in_the_result():
    def build(path: str):
        one = index(path)
        two = join((one, [one, 3]), extra={"a": one, "b": {"c": path}, "d": [1]})
        return {"one": one, "rest": [two, "x", path]}

    result = traced(build, "p" * 5)
    assert result.graph.nodes[1].args == (ListOf((Output(0), ListOf((Output(0), Const(0))))),)
    assert result.graph.nodes[1].kwargs["extra"] == DictOf(
        {"a": Output(0), "b": Const(1), "d": Const(2)}
    )
    assert consts(result)[:3] == [3, {"c": "ppppp"}, [1]]
    assert result.graph.result == DictOf(
        {"one": Output(0), "rest": ListOf((Output(1), Const(3), Param("path")))}
    )


def test_parts_of_a_result_are_picked_by_key_index_and_field():
    def build():
        join(join([])["x"][0]["y"])
        join(measure("p").lines)
        join(pair().right.name)
        join(model().size)
        join(measure.map(["a"])[0].name)

    picked = [
        node.args[0]
        for node in nodes(build)
        if node.name.startswith("join") and isinstance(node.args[0], Output)
    ]
    assert [each.path for each in picked] == [
        ("x", 0, "y"),
        ("lines",),
        (1, "name"),
        ("size",),
        (0, "name"),
    ]


def test_conditions_are_built_from_handles():
    def build(limit: int):
        n = as_handle(index("a"))
        m = index("b")
        tidy.with_options(when=n)()
        tidy.with_options(when=(n > 3) & (m <= limit))()
        tidy.with_options(when=(n == m) | ~(n != "x"))()
        tidy.with_options(when=n.is_in([1, 2]) & True)()
        tidy.with_options(when=not_(m))()
        tidy.with_options(when=False)()
        tidy.with_options(when=None)()

    result = traced(build, 1_000)
    values = consts(result)
    found = [node.when for node in result.graph.nodes[2:]]

    def const(value: Any) -> Const:
        return Const(values.index(value))

    n, m = Output(0), Output(1)
    assert found == [
        Truthy(n),
        AllOf((Compare(">", n, const(3)), Compare("<=", m, Param("limit")))),
        AnyOf((Compare("==", n, m), Not(Compare("!=", n, const("x"))))),
        AllOf((Compare("in", n, const([1, 2])), Truthy(const(True)))),
        Not(Truthy(m)),
        Truthy(const(False)),
        None,
    ]


def test_options_of_one_call_override_the_steps():
    def build():
        first = index("a")
        again = keyed.with_options(
            after=[first], retries=5, timeout=None, pools={"db": 1}, name="special"
        )
        again("b")
        keyed.with_options(run_if="always", queue_timeout="5s")("c")

    _, special, plain = nodes(build)
    assert (special.name, special.after, special.timeout_us) == ("special", (0,), None)
    assert (special.retry.retries, special.pools) == (5, (PoolNeed("db", 1),))
    assert (plain.name, plain.retry.retries, plain.timeout_us) == ("keyed", 2, 60_000_000)
    assert (plain.run_if, plain.queue_timeout_us) == ("always", 5_000_000)


def test_a_pools_key_is_taken_from_arguments_else_from_tags():
    def build(path: str):
        keyed(path)
        keyed(path="x", region="us")
        keyed.map([path], region=path)

    result = traced(build, "some path")
    values = consts(result)
    tenant = PoolNeed("api", 1, (Tag("tenant"),))
    assert [node.pools for node in result.graph.nodes] == [
        (tenant, PoolNeed("db", 2, (Const(values.index("eu")), "-x-", Param("path")))),
        (
            tenant,
            PoolNeed("db", 2, (Const(values.index("us")), "-x-", Const(values.index("x")))),
        ),
        (tenant, PoolNeed("db", 2, (Param("path"), "-x-", Item()))),
    ]


def test_nodes_are_named_after_their_step_and_numbered():
    def build():
        for _ in range(3):
            tidy()
        tidy.with_options(name="tidy-5")()
        tidy()
        tidy()

    assert [node.name for node in nodes(build)] == [
        "tidy",
        "tidy-2",
        "tidy-3",
        "tidy-5",
        "tidy-4",
        "tidy-6",
    ]


def test_a_flow_in_a_flow_is_inlined_under_its_name():
    @flow(queue_timeout="9s", on_failure=tidy)
    def inner(path: str) -> int:
        return index(path)

    def outer(path: str):
        return join([inner(path), inner("literal")])

    found = nodes(outer, "outer path")
    assert [node.name for node in found] == [
        "inner.index",
        "inner.tidy",
        "inner-2.index",
        "inner-2.tidy",
        "join",
    ]
    assert found[0].args == (Param("path"),)
    assert found[0].queue_timeout_us == 9_000_000
    assert (found[1].after, found[1].run_if) == ((0,), "failure")
    assert found[3].after == (2,)
    assert found[4].args == (ListOf((Output(0), Output(2))),)


def test_an_inner_bound_that_would_not_hold_is_refused():
    @flow(max_parallel=4)
    def inner() -> None:
        tidy()

    def outer():
        inner()

    with pytest.raises(InvalidFlow, match="does not keep"):
        traced(outer)
    with pytest.raises(InvalidFlow, match="does not keep"):
        traced(outer, options={"max_parallel": 5})
    assert len(nodes(outer, options={"max_parallel": 4})) == 1


def test_a_sequential_flow_chains_its_steps_in_trace_order():
    def build(paths: list[str]):
        index.map(paths, window=5)
        tidy.with_options(on_failure=tidy)()
        index("b")
        tidy.with_options(run_if="always")()

    found = nodes(build, ["a"], options={"sequential": True})
    assert [(node.name, node.after) for node in found] == [
        ("index", ()),
        ("tidy", (0,)),
        ("tidy-2", (1,)),  # the clean-up of the step before it
        ("index-2", (1, 2)),  # a clean-up that is skipped when all is well does not skip it
        ("tidy-3", (3,)),
    ]
    assert found[0].window == 1


def test_items_of_an_inner_sequential_flow_start_in_order():
    @flow(sequential=True)
    def inner(paths: list[str]) -> None:
        index.map(paths)

    def outer(paths: list[str]):
        inner(paths)
        index.map(paths)

    found = traced(outer, ["a"]).graph
    assert [(node.in_order, node.window) for node in found.nodes] == [(True, 1), (False, None)]
    assert found.version == GRAPH_VERSION
    # Of the outermost flow the graph says it, once.
    plain = traced(outer, ["a"], options={"sequential": True}).graph
    assert (plain.sequential, plain.nodes[0].in_order) == (True, False)


def test_on_failure_gives_the_failure_to_a_step_that_takes_one():
    @step
    def report(failure: StepError, channel: str = "ops") -> None: ...

    @step
    def optional(failure: StepError | None = None) -> None: ...

    def build():
        index.with_options(on_failure=report)("a")
        index.with_options(on_failure=optional)("b")

    _, reports, _, tidies = nodes(build)
    assert (reports.args, reports.after, reports.run_if) == ((FailureOf(),), (0,), "failure")
    assert tidies.args == ()


def test_on_failure_adds_a_step_that_runs_only_then():
    def build():
        index.with_options(on_failure=tidy)("a")
        index("b")

    found = nodes(build, options={"on_failure": tidy.with_options(timeout="1s")})
    assert [(node.name, node.after, node.run_if) for node in found] == [
        ("index", (), "success"),
        ("tidy", (0,), "failure"),
        ("index-2", (), "success"),
        ("tidy-2", (0, 1, 2), "failure"),
    ]
    assert found[3].timeout_us == 1_000_000


def test_what_holds_for_the_run_is_copied_into_the_graph():
    def build():
        tidy()

    graph = traced(
        build,
        options={"max_parallel": {"process": 2}, "fail": "fast", "dispatch_deadline": "1h"},
    ).graph
    assert graph.max_parallel_by == {"process": 2}
    assert (graph.fail, graph.dispatch_deadline_us) == ("fast", 3_600_000_000)
    assert graph.result is None


def test_anything_that_can_be_listed_can_be_mapped():
    def build(sizes: tuple[int, ...]):
        index.map(str(n) for n in range(3))
        index.map({"only"})
        join.map(range(2))
        join.map(sizes)
        join.map([])
        one = index("a")
        join.map([one, 2])

    result = traced(build, (1, 2))
    assert result.graph.nodes[3].over == Param("sizes")
    assert result.graph.nodes[6].over == ListOf((Output(5), Const(5)))
    assert consts(result)[:4] == [["0", "1", "2"], ["only"], [0, 1], []]


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().endswith(text))


def test_a_body_that_raises_shows_the_users_own_line():
    def build(n: str):
        helper(n)  # the line in question

    def helper(n: str) -> int:
        return int(n)  # where it raises

    with pytest.raises(InvalidFlow) as caught:
        traced(build, "many")
    where = f"{Path(__file__).name}:{line_of('# where it raises')}"
    assert where in caught.value.message
    assert "ValueError: invalid literal" in caught.value.message
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_failed_trace_leaves_no_trace_behind():
    def build():
        raise RuntimeError("boom")

    with pytest.raises(InvalidFlow, match="boom"):
        traced(build)
    assert current() is None


FOREIGN: list[Any] = []


def misuse() -> dict[str, tuple[Any, str]]:
    """Bodies that ask of a handle what only a result could do, and what the message must say."""

    def with_if():
        if index("a"):
            tidy()

    def with_compare():
        if index("a") > 3:
            tidy()

    def with_in():
        return index("a") in [1, 2]

    def with_contains():
        return 1 in join([])

    def with_loop():
        return list(index.map(["a"]))

    def with_len():
        return len(index.map(["a"]))

    def with_text():
        index(f"{index('a')}.txt")

    def with_str():
        index(str(index("a")))

    def with_method():
        return download("a").upper()

    def with_unknown_field():
        return measure("a").width  # type: ignore[attr-defined]

    def with_call():
        return measure("a").lines()  # type: ignore[operator]

    def with_slice():
        return index.map(["a"])[1:]

    def with_arithmetic():
        return index("a") + 1

    def with_function():
        tidy.with_options(when=lambda: True)()

    def with_text_condition():
        tidy.with_options(when="yes")()

    def with_condition_as_argument():
        join(index("a") > 3)

    def with_object():
        return join(Stats(index("a"), "n"))

    def with_set():
        return join({index("a")})

    def with_number_keys():
        return join({1: index("a")})

    def with_after_text():
        tidy.with_options(after=["index"])()

    def with_foreign():
        return join(FOREIGN[0])

    def with_foreign_condition():
        return tidy.with_options(when=FOREIGN[1])()

    def with_same_name():
        tidy.with_options(name="x")()
        tidy.with_options(name="x")()

    return {
        "if": (with_if, "with_options(when=handle)"),
        "compare": (with_compare, "with_options(when=...)"),
        "in": (with_in, "is_in([...])"),
        "contains": (with_contains, "searched with in"),
        "loop": (with_loop, "step.map(handle)"),
        "len": (with_len, "Count in a step"),
        "text": (with_text, "make the text there"),
        "str": (with_str, "make the text there"),
        "method": (with_method, "no field 'upper'"),
        "unknown field": (with_unknown_field, "no field 'width'"),
        "call": (with_call, "cannot be called"),
        "slice": (with_slice, "Pick one part"),
        "arithmetic": (with_arithmetic, "cannot be calculated with"),
        "function": (with_function, "Make the function a step"),
        "text condition": (with_text_condition, "when= cannot be a str"),
        "condition": (with_condition_as_argument, "Conditions serve when="),
        "object": (with_object, "build other things in a step"),
        "set": (with_set, "build other things in a step"),
        "number keys": (with_number_keys, "Use text as keys"),
        "after": (with_after_text, "after= takes handles"),
        "foreign": (with_foreign, "belongs to another trace"),
        "foreign condition": (with_foreign_condition, "belongs to another trace"),
        "same name": (with_same_name, "named 'x'"),
    }


@pytest.mark.parametrize("case", list(misuse()))
def test_what_cannot_be_traced_says_what_to_write(case: str):
    # given handles of an earlier trace
    def earlier():
        one = index("a")
        FOREIGN[:] = [one, one > 3]

    traced(earlier)
    body, says = misuse()[case]
    # when a body asks too much, then the message names the line and the way out
    with pytest.raises(InvalidFlow) as caught:
        traced(body)
    assert says in str(caught.value)
    assert f"{Path(__file__).name}:" in caught.value.message


def with_option(**options: Any) -> Any:
    tidy.with_options(**options)()


def calls() -> dict[str, tuple[Any, str]]:
    return {
        "too few": (lambda: index(*()), "missing a required argument: 'path'"),  # type: ignore[call-arg]
        "too many": (lambda: tidy(1), "too many positional arguments"),  # type: ignore[call-arg]
        "unknown": (lambda: index("a", width=2), "'width'"),  # type: ignore[call-arg]
        "map": (lambda: tidy.map([1]), "too many positional"),  # type: ignore[misc]
        "shared": (lambda: index.map(["a"], width=2), "'width'"),
        "window": (lambda: index.map(["a"], window=0), "window must be 1 or more"),
        "on_error": (lambda: index.map(["a"], on_error="no"), "on_error must be one of"),  # type: ignore[call-overload]
        "text": (lambda: index.map("abc"), "mapped over a str"),
        "dict": (lambda: index.map({"a": 1}), "list(d.items())"),
        "number": (lambda: index.map(3), "mapped over a int"),  # type: ignore[call-overload]
        "items": (lambda: join.map([0] * 100_001), "at most 100,000"),
        "run_if": (lambda: with_option(run_if="never"), "run_if must be one of"),
        "option": (lambda: with_option(windw=3), "no option 'windw'"),
        "retry_on": (lambda: with_option(retry_on=OSError), "no option"),
        "cleanup": (
            lambda: index.with_options(on_failure=index)("a"),
            "its first parameter is str",
        ),
        "take_errors": (
            lambda: index.map(["a"], take_errors=1),
            "take_errors must be True or False",
        ),  # type: ignore[call-overload]
        "list key": (lambda: keyed([index("a")]), "key of a pool"),  # type: ignore[list-item]
    }


@pytest.mark.parametrize("case", list(calls()))
def test_a_step_called_wrongly_is_refused(case: str):
    body, says = calls()[case]

    def build():
        body()

    with pytest.raises(InvalidFlow) as caught:
        traced(build)
    assert says in str(caught.value)


def test_a_step_called_with_wrong_arguments_shows_its_signature():
    def build():
        index("a", 1, 2)  # type: ignore[call-arg]

    with pytest.raises(InvalidFlow) as caught:
        traced(build)
    assert "Its signature is index(path: str, depth: int = 1) -> int." in str(caught.value)
    assert str(caught.value.got) == "index('a', 1, 2)"


def test_a_flow_called_with_wrong_arguments_shows_its_signature():
    def build(path: str): ...

    with pytest.raises(InvalidFlow, match=r"Its signature is build\(path: str\)"):
        traced(build)


def test_an_argument_that_has_no_json_form_is_named():
    def build(job: dict[str, Any]):
        join(job)

    with pytest.raises(Unserialisable) as caught:
        traced(build, {"items": [{"conn": object()}]})
    assert caught.value.field == "job.items[0].conn"
    assert "flow 'build'" in caught.value.message


def test_a_literal_that_has_no_json_form_is_named_with_its_line():
    def build():
        join([1], extra={"a": [float("nan")]})

    with pytest.raises(Unserialisable) as caught:
        traced(build)
    assert caught.value.field == "join.extra.a[0]"
    assert f"flow 'build' at {__file__}:" in caught.value.message


def test_an_argument_that_contains_itself_is_refused():
    def build():
        loop: list[Any] = []
        loop.append(loop)
        join(loop)

    with pytest.raises(Unserialisable, match="contains itself"):
        traced(build)


def test_too_many_steps_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("locktender.flows.tracer.MAX_NODES", 10)

    def build():
        for _ in range(11):
            tidy()

    with pytest.raises(InvalidFlow, match="at most 10 steps"):
        traced(build)


def test_a_flow_that_calls_itself_for_ever_is_refused():
    @flow
    def endless(n: int) -> None:
        endless(n + 1)

    with pytest.raises(InvalidFlow, match="without end"):
        trace(endless, (1,))


def test_a_redefined_step_is_not_taken_for_the_newer():
    def make(n: int) -> Any:
        @step
        def local() -> int:
            return n

        return local

    first, second = make(1), make(2)

    def build(which: int):
        (first if which == 1 else second)()

    assert len(nodes(build, 2)) == 1
    with pytest.raises(InvalidFlow, match="defined again"):
        traced(build, 1)


def test_an_unresolvable_annotation_names_the_flow():
    @step
    def unknown(value: "Nowhere"): ...  # type: ignore[name-defined]  # noqa: F821

    def build():
        unknown(1)

    with pytest.raises(InvalidFlow, match="outside TYPE_CHECKING"):
        traced(build)


def test_calls_made_by_a_flow_without_a_result_are_in_the_graph():
    def build():
        tidy()

    result = traced(build)
    assert [node.name for node in result.graph.nodes] == ["tidy"]
    assert result.graph.result is None


def test_hasattr_answers_for_a_handle():
    def build():
        one: Any = index("a")
        assert isinstance(one, Handle)
        assert not hasattr(one, "mapping")
        assert repr(one[0]["x"]) == "<handle of index[0]['x']>"

    traced(build)


def test_a_recorded_call_decodes_to_what_the_flow_passed():
    """A worker reads a rendered call with the step's own annotations."""

    @step
    def typed(stats: Stats, where: Path) -> None: ...

    def build(stats: Stats):
        typed(stats, where=Path("a/b"))

    result = traced(build, Stats(3, "x"))
    params, values = codec.decode(result.params), codec.split_list(result.consts)
    call = codec.render_call([codec.encode(params["stats"])], {"where": values[0]})
    assert typed.definition.decode_call(call) == ([Stats(3, "x")], {"where": Path("a/b")})
