"""Runs of one flow share the graph where they are the same, and nothing else."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locktender.base.errors import InvalidFlow, LocktenderError
from locktender.base.graph import Const, Graph, Output, Param, PoolNeed
from locktender.flows.flows import Flow, flow
from locktender.flows.steps import step
from locktender.flows.trace import Traced, trace
from locktender.flows.trace_cache import MAX_BRANCHES, MAX_PLACES, TraceCache


@step
def one(x: int, y: int = 7) -> int: ...


@step(pools={"db": 1})
def two(x: int, y: int) -> list[int]: ...


@step(pools={"api[{tenant}]": 1})
def keyed(x: int, tenant: str = "acme") -> int: ...


@step
def tidy() -> None: ...


@flow
def inner(x: int) -> int:
    return one(one(x))


safe = one.with_options(on_failure=tidy)
sure = one.with_options(when=True)


Op = tuple[str, int, int]


def call(op: Op, n: int, made: list[Any]) -> Any:
    """One call of a step, as a word says."""
    word, place, number = op
    earlier = made[place % len(made)] if made else n
    match word:
        case "param":
            return one(n)
        case "const":
            return one(number)
        case "named":
            return one(x=earlier, y=number)
        case "earlier":
            return two(earlier, number)
        case "part":
            return one(two(number, n)[place])
        case "list":
            return two(n, y=[earlier, {"k": number}])  # type: ignore[arg-type]
        case "map":
            return one.map([number, n], window=place + 1, y=earlier)
        case "after":
            return one.with_options(after=made)(n)
        case "when":
            return one.with_options(when=(earlier == number) if made else True)(n)
        case "retries":
            return one.with_options(retries=place)(earlier)
        case "name":
            return one.with_options(name=f"n{place}")(n)
        case "safe":
            return safe(n)
        case "sure":
            return sure(n)
        case "clean":
            return one.with_options(on_failure=tidy)(n)
        case "keyed":
            return keyed(number) if place else keyed(n, tenant="x")
        case "inner":
            return inner(earlier)
        case _:
            return one(n, n, n)  # type: ignore[call-arg]


def body(n: int, program: list[Op]) -> Any:
    made: list[Any] = []
    for op in program:
        made.append(call(op, n, made))
    return made[-1] if made and n % 2 else made


plain = flow(name="trace_cache-plain")(body)
chained = flow(name="trace_cache-chained", sequential=True, on_failure=tidy)(body)

WORDS = [
    "param", "const", "named", "earlier", "part", "list", "map", "after", "when", "retries",
    "name", "safe", "sure", "clean", "keyed", "inner", "wrong",
]  # fmt: skip
ops = st.tuples(st.sampled_from(WORDS), st.integers(0, 2), st.sampled_from([3, 300, 70_000]))
programs = st.lists(ops, max_size=5)


def outcome(traced: Flow[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        found = trace(traced, args)
    except LocktenderError as error:
        return type(error), error.message, error.field
    return found.digest, found.body, found.params, found.consts, found.graph


@given(st.lists(st.tuples(st.integers(0, 3), programs), min_size=1, max_size=6), st.booleans())
def test_a_run_of_a_known_graph_is_traced_like_the_first(
    calls: list[tuple[int, list[Op]]], in_order: bool
):
    traced = chained if in_order else plain
    for args in [*calls, *calls]:
        known = outcome(traced, args)

        trace_cache, traced.definition.trace_cache = traced.definition.trace_cache, TraceCache()
        first = outcome(traced, args)
        traced.definition.trace_cache = trace_cache

        assert known == first


def places(traced: Flow[..., Any]) -> int:
    return traced.definition.trace_cache.places


def test_runs_share_one_graph_and_have_their_own_values():
    @flow
    def shape(n: int, extra: str = "e"):
        return two(one(n), 5)

    first, second = trace(shape, (1,)), trace(shape, (2,), {"extra": "f"})

    assert first.graph is second.graph
    assert (first.digest, first.body) == (second.digest, second.body)
    assert (first.params, second.params) == (b'{"n":1,"extra":"e"}', b'{"n":2,"extra":"f"}')
    assert first.consts == second.consts == b"[5]"
    assert places(shape) == 2


def test_a_graph_that_depends_on_arguments_is_the_runs_own():
    @flow
    def shape(n: int):
        last = one(n)
        for _ in range(n):
            last = two(last, n) if n % 2 else one(last)
        return last

    traced = [trace(shape, (n,)) for n in (0, 1, 2, 3, 1, 2, 0, 3)]

    sizes = [len(each.graph.nodes) for each in traced]
    assert sizes == [1, 2, 3, 4, 2, 3, 1, 4]
    assert [node.name for node in traced[3].graph.nodes] == ["one", "two", "two-2", "two-3"]
    assert [node.name for node in traced[2].graph.nodes] == ["one", "one-2", "one-3"]
    assert traced[1].graph is traced[4].graph


def test_a_run_that_turns_off_numbers_its_steps_on():
    @flow
    def shape(n: int):
        one(n)
        one(n)
        two(n, n) if n else one(n)
        return one(n)

    trace(shape, (1,))
    other = trace(shape, (0,))

    assert [node.name for node in other.graph.nodes] == ["one", "one-2", "one-3", "one-4"]


def test_only_the_result_differs():
    @flow
    def shape(n: int) -> Any:
        handle = two(n, n)
        return handle[0] if n else handle

    whole, part, again = trace(shape, (0,)), trace(shape, (1,)), trace(shape, (0,))

    assert (whole.graph.result, part.graph.result) == (Output(0), Output(0, (0,)))
    assert again.graph is whole.graph
    assert whole.digest != part.digest


def test_a_mutable_default_is_read_anew_for_every_run():
    @flow
    def shape(n: int, seen: list[int] = []) -> Any:  # noqa: B006 — what users write
        seen.append(n)
        return two(n, seen)  # type: ignore[arg-type]

    first, second = trace(shape, (1,)), trace(shape, (2,))

    assert first.graph is second.graph
    assert first.graph.nodes[0].args == (Param("n"), Const(0))
    assert (first.consts, second.consts) == (b"[[1]]", b"[[1,2]]")
    # A flow's parameters are kept as they were when its body began.
    assert (first.params, second.params) == (b'{"n":1,"seen":[]}', b'{"n":2,"seen":[1]}')


def test_a_list_changed_between_two_calls_is_two_values():
    @flow
    def shape(n: int):
        several = [n]
        one(several)  # type: ignore[arg-type]
        several.append(n + 1)
        return one(several)  # type: ignore[arg-type]

    trace(shape, (1,))
    traced = trace(shape, (5,))

    assert traced.consts == b"[[5],[5,6]]"
    assert [node.args for node in traced.graph.nodes] == [(Const(0),), (Const(1),)]


def test_the_default_in_a_pools_key_is_a_value_of_every_run():
    @flow
    def shape(n: int):
        return keyed(n)

    for _ in range(3):
        traced = trace(shape, (1,))

        assert traced.graph.nodes[0].pools == (PoolNeed("api", 1, (Const(0),)),)
        assert traced.consts == b'["acme"]'


def test_a_redefined_step_is_refused_in_a_known_graph():
    @step(name="trace_cache-defined-again")
    def again(x: int) -> int: ...

    @flow
    def shape(n: int):
        return again(n)

    trace(shape, (1,))

    @step(name="trace_cache-defined-again")
    def newer(x: int) -> int: ...  # pyright: ignore[reportUnusedFunction]

    with pytest.raises(InvalidFlow, match="defined again"):
        trace(shape, (1,))


def test_options_made_in_the_body_are_known_by_what_they_say():
    @flow
    def shape(n: int):
        handle = one.with_options(retries=n % 2)(n)
        return two.with_options(after=handle)(n, n)

    traced = [trace(shape, (n,)) for n in range(100)]

    assert [each.graph.nodes[0].retry.retries for each in traced[:4]] == [0, 1, 0, 1]
    assert traced[0].graph is traced[98].graph
    assert places(shape) == 4


def test_arguments_by_name_tell_calls_apart():
    @flow
    def shape(n: int, m: int):
        first = one(n)
        return one(x=first, y=m) if n else one(x=n, y=first)

    named = [trace(shape, (n, 300)).graph.nodes[1].kwargs for n in (1, 0, 1)]

    assert named[0] == named[2] == {"x": Output(0), "y": Param("m")}
    assert named[1] == {"x": Param("n"), "y": Output(0)}


def test_what_a_call_brings_along_is_there_in_every_run():
    @flow
    def shape(n: int):
        safe(n)
        return sure(n)

    for _ in range(3):
        traced = trace(shape, (1,))

        assert [node.name for node in traced.graph.nodes] == ["one", "tidy", "one-2"]
        assert traced.consts == b"[true]"


def test_a_call_of_another_run_is_refused():
    kept: list[Any] = []

    @flow
    def shape(n: int):
        kept.append(one.with_options(after=one(n)))
        return kept[0](n)

    trace(shape, (1,))

    with pytest.raises(InvalidFlow, match="another trace"):
        trace(shape, (1,))


def test_a_handle_of_another_run_is_refused():
    kept: list[Any] = []

    @flow
    def shape(n: int):
        kept.append(one(n))
        return two(kept[0], n)

    trace(shape, (1,))

    with pytest.raises(InvalidFlow, match="another trace"):
        trace(shape, (1,))


def test_what_is_known_is_bounded():
    @flow
    def wide(n: int):
        return [one.with_options(name=f"n{n}")(n), one(n)]

    @flow
    def long(n: int):
        for _ in range(n):
            one(n)

    wides = [trace(wide, (n,)) for n in range(4 * MAX_BRANCHES)]
    trace(long, (MAX_PLACES + 10,))
    again = trace(long, (MAX_PLACES + 10,))

    assert [each.graph.nodes[0].name for each in wides] == [f"n{n}" for n in range(len(wides))]
    assert places(wide) == 2 * MAX_BRANCHES
    assert places(long) == MAX_PLACES
    assert len(again.graph.nodes) == MAX_PLACES + 10


def test_threads_trace_one_flow_at_a_time():
    @flow
    def shape(n: int):
        last = one(n)
        for _ in range(n % 5):
            last = two(last, n)
        return last

    def sizes(_: int) -> list[int]:
        return [len(trace(shape, (n,)).graph.nodes) for n in range(200)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(sizes, range(8)))

    assert found == [[n % 5 + 1 for n in range(200)]] * 8


def test_a_known_graph_is_what_its_json_says():
    @flow
    def shape(n: int):
        return two(one(n), y=n)

    traced: list[Traced] = [trace(shape, (n,)) for n in range(3)]

    for each in traced:
        assert msgspec.json.decode(each.body, type=Graph) == each.graph
