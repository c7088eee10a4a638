"""Defining steps and flows: names, options, signatures, and what is refused where it is written."""

import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from locktender.base import codec
from locktender.base.errors import (
    InvalidFlow,
    InvalidInput,
    InvalidResult,
    LocktenderError,
    NotFound,
    Unserialisable,
)
from locktender.base.graph import RetryPolicy
from locktender.flows import flows
from locktender.flows.definitions import StepDef
from locktender.flows.flows import flow
from locktender.flows.options import Placeholder, PoolText
from locktender.flows.registry import Registry, registry
from locktender.flows.steps import AsyncStep, Fatal, Retry, step


@step
def add(one: Any, other: Any) -> Any:
    return one + other


@step
def double(n: int) -> int:
    """Twice n."""
    return 2 * n


@step(
    pool="db",
    pools={"api[{tenant}-v1]": 2},
    retries=3,
    retry_delay="2s",
    backoff=3,
    jitter=False,
    max_retry_delay="1m",
    retry_on=(TimeoutError,),
    timeout="2m",
    queue_timeout=10,
    dispatch_deadline="1h",
    executor="process",
    needs={"gpu": True},
    affinity="model",
    version=2,
    max_abandons=5,
)
def full(path: str, tenant: str) -> int:
    return len(path + tenant)


@step
async def fetch(url: str, *more: int, retries: int = 0, **rest: list[str]) -> str:
    return f"{url}{more}{retries}{rest}"


@flow
def simple(n: int) -> int:
    return double(n)


def test_outside_a_flow_a_step_just_calls_its_function():
    assert double(4) == 8
    assert double.with_options(timeout="1s")(4) == 8
    assert double.map([1, 2]) == [2, 4]
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice n."
    assert inspect.signature(double) == inspect.signature(double.fn)


async def test_outside_a_flow_an_async_step_is_awaited():
    assert isinstance(fetch, AsyncStep)
    assert await fetch.fn("u", 1) == "u(1,)0{}"
    assert await fetch("u") == "u()0{}"  # type: ignore[misc]
    with pytest.raises(InvalidFlow, match="async"):
        fetch.map(["u"])


def test_options_become_what_the_engine_needs():
    definition = full.definition
    options = definition.options
    assert definition.executor == "process"
    assert definition.timeout_us == 120_000_000
    assert definition.retry_on == (TimeoutError,)
    assert options.retry == RetryPolicy(3, 2_000_000, 3.0, False, 60_000_000)
    assert options.queue_timeout_us == 10_000_000
    assert options.dispatch_deadline_us == 3_600_000_000
    assert options.needs == {"gpu": "true"}
    assert (options.affinity, options.max_abandons) == ("model", 5)
    assert options.pools == (
        PoolText("db", 1),
        PoolText("api", 2, (Placeholder("tenant"), "-v1")),
    )


def test_the_executor_follows_the_function():
    assert double.definition.executor == "thread"
    assert fetch.definition.executor == "async"


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        ({"pool": "db", "pools": {"db": 2}}, "pools", "twice"),
        ({"pools": {"db": 0}}, "pools.db.slots", "1 or more"),
        ({"pools": {"db": True}}, "pools.db.slots", "whole number"),
        ({"pools": ["db"]}, "pools", "mapping"),
        ({"pool": "a/b"}, "pool", "path"),
        ({"pool": "api{tenant}"}, "pool", "not a pool's name"),
        ({"pool": "api[{}]"}, "pool", "cannot be read"),
        ({"pool": "api[{a]"}, "pool", "cannot be read"),
        ({"pool": "api[*]"}, "pool", "cannot be read"),
        ({"retries": -1}, "retries", "0 or more"),
        ({"retries": "three"}, "retries", "whole number"),
        ({"backoff": 0.5}, "backoff", "between 1"),
        ({"backoff": float("nan")}, "backoff", "between 1"),
        ({"backoff": True}, "backoff", "between 1"),
        ({"jitter": 1}, "jitter", "True or False"),
        ({"timeout": "soon"}, "timeout", "not a duration"),
        ({"timeout": 0}, "timeout", "more than zero"),
        ({"queue_timeout": -1}, "queue_timeout", "more than zero"),
        ({"dispatch_deadline": "1x"}, "dispatch_deadline", "not a duration"),
        ({"retry_on": (TimeoutError, "x")}, "retry_on", "exception classes"),
        ({"retry_on": KeyboardInterrupt}, "retry_on", "exception classes"),
        ({"executor": "gpu"}, "executor", "one of"),
        ({"executor": "async"}, "executor", "block the event loop"),
        ({"executor": "process"}, "executor", "cannot import"),
        ({"needs": {"a": "\x00"}}, "needs.a", "control character"),
        ({"needs": {"g pu=": "a"}}, "needs", "a label's name must not contain '='"),
        ({"needs": {"gpu": "*"}}, "needs.gpu", "a label's value must not begin"),
        ({"needs": "gpu=a100"}, "needs", "must be a mapping"),
        ({"max_abandons": 0}, "max_abandons", "1 or more"),
        ({"name": "a/b"}, "name", "path"),
        ({"retrys": 1}, "retrys", "no option"),
    ],
)
def test_a_bad_option_of_a_step_is_refused_at_definition(
    options: dict[str, Any], field: str, says: str
):
    def refused(n: int) -> int:
        return n

    with pytest.raises(InvalidInput) as caught:
        step(**options)(refused)
    assert says in caught.value.message
    assert caught.value.field == field
    assert not [name for name in registry.steps if name.endswith("refused")]


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(InvalidFlow, match="Did you mean 'retries'"):
        step(retrys=1)(lambda: 1)  # type: ignore[call-overload]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_an_async_function_runs_only_on_the_loop(executor: Any):
    async def body() -> None: ...

    with pytest.raises(InvalidFlow, match="an async function cannot run in a"):
        step(executor=executor)(body)


def test_what_is_no_plain_function_cannot_be_a_step():
    class Service:
        def method(self) -> None: ...

    def generator():
        yield 1

    method: Any = Service.method
    method.__qualname__ = "Service.method"
    for bad, says in [
        (len, "must be a function"),
        (Service, "must be a function"),
        (Service().method, "must be a function"),
        (method, "is a method"),
        (generator, "is a generator"),
        (lambda: 1, "a lambda has no name"),
    ]:
        with pytest.raises(InvalidFlow) as caught:
            step(bad)  # type: ignore[arg-type]
        assert says in caught.value.message


def test_a_lambda_is_told_what_would_help_it():
    with pytest.raises(InvalidFlow, match=r"or give it name="):
        step(lambda: 1)
    with pytest.raises(InvalidFlow) as caught:
        step(executor="process")(lambda: 1)  # a name would not help: nobody can import it
    assert "name=" not in str(caught.value)


def test_words_that_are_known_are_listed_once():
    with pytest.raises(InvalidFlow) as caught:
        step(executor="fibre")(double.fn)  # type: ignore[call-overload]
    assert str(caught.value) == (
        "executor must be one of auto, async, thread, process. Got 'fibre'."
    )
    with pytest.raises(InvalidFlow, match="Did you mean 'process'"):
        step(executor="proces")(double.fn)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        ({"max_parallel": 0}, "max_parallel", "1 or more"),
        ({"max_parallel": "many"}, "max_parallel", "whole number"),
        ({"max_parallel": {"gpu": 1}}, "max_parallel", "one of"),
        ({"max_parallel": {"process": 0}}, "max_parallel.process", "1 or more"),
        ({"sequential": "yes"}, "sequential", "True or False"),
        ({"fail": "slow"}, "fail", "one of"),
        ({"tags": {"a": ""}}, "tags.a", "empty"),
        ({"tags": {f"t{i}": "x" for i in range(65)}}, "tags", "at most 64"),
        ({"priority": 1.5}, "priority", "whole number"),
        ({"deadline": "never"}, "deadline", "not a duration"),
        ({"on_failure": double}, "on_failure", "its first parameter is int"),
        ({"on_failure": add}, "add", "missing a required argument"),
        ({"on_failure": print}, "on_failure", "takes a step"),
        ({"max_paralel": 2}, "max_paralel", "no option"),
    ],
)
def test_a_bad_option_of_a_flow_is_refused_at_definition(
    options: dict[str, Any], field: str, says: str
):
    def body() -> None: ...

    with pytest.raises(InvalidInput) as caught:
        flow(**options)(body)
    assert says in caught.value.message
    assert caught.value.field == field


def test_an_async_flow_is_refused_with_a_hint():
    async def body() -> None: ...

    with pytest.raises(InvalidFlow, match="the steps may be async"):
        flow(body)


def test_a_flow_called_outside_a_flow_says_how_to_run_it():
    with pytest.raises(InvalidFlow, match=r"simple\.run\(\.\.\.\)"):
        simple(3)


def test_steps_and_flows_are_registered_by_module_and_name():
    assert registry.steps[f"{__name__}:double"] is double.definition
    assert registry.step(double.name) is double.definition
    assert registry.flow(simple.name) is simple.definition
    with pytest.raises(NotFound, match="Did you mean"):
        registry.step(double.name + "s")


def test_a_script_registers_under_its_files_name(tmp_path: Path):
    script = tmp_path / "pipeline.py"
    script.write_text(
        textwrap.dedent("""
        from locktender.flows.steps import step
        @step
        def work(): ...
        print(work.name)
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.stdout.strip() == "pipeline:work", done.stderr


def define(source: str, file: str) -> StepDef:
    scope: dict[str, Any] = {"__name__": "reloaded"}
    exec(compile(source, file, "exec"), scope)
    return StepDef(scope["work"], {})


def test_a_name_is_redefined_only_in_its_own_file():
    # given a step that was loaded from a file
    known = Registry()
    first = define("def work(): ...", "/a/flows.py")
    known.add_step(first)
    # when the file is loaded again, the newer one serves
    second = define("def work(n): ...", "/a/flows.py")
    known.add_step(second)
    assert known.steps[second.name] is second
    # but another file may not take the name
    with pytest.raises(InvalidFlow, match=r"/a/flows\.py, one in /b/flows\.py"):
        known.add_step(define("def work(): ...", "/b/flows.py"))


def test_lines_typed_at_a_prompt_may_redefine_each_other():
    known = Registry()
    known.add_step(define("def work(): ...", "<stdin-1>"))
    known.add_step(define("def work(): ...", "<stdin-2>"))


def test_the_signature_changes_with_parameters_and_version_only():
    def signature(source: str, **options: Any) -> str:
        scope: dict[str, Any] = {"__name__": "m"}
        exec(source, scope)
        return StepDef(scope["work"], options).signature

    plain = signature("def work(a: int): return 1")
    assert signature("def work(a: 'int'): return 2") == plain
    assert signature("def work(a: int) -> str: ...", timeout="1s", retries=2) == plain
    others = {
        signature("def work(a: str): ..."),
        signature("def work(b: int): ..."),
        signature("def work(a: int, b: int = 1): ..."),
        signature("def work(a: int = 3): ..."),
        signature("def work(a: int): ...", version="2"),
        signature("def work(a: int): ...", name="other"),
    }
    assert len(others) == 6
    assert plain not in others


def test_a_call_is_decoded_by_annotation():
    raw = b'{"args":["u",1,2],"kwargs":{"retries":3,"extra":["a"]}}'
    assert fetch.definition.decode_call(raw) == (
        ["u", 1, 2],
        {"retries": 3, "extra": ["a"]},
    )
    assert simple.definition.decode_call(b'{"args":[],"kwargs":{"n":3}}') == ([], {"n": 3})
    with pytest.raises(InvalidInput, match="n is not int"):
        double.definition.decode_call(b'{"args":["x"],"kwargs":{}}')
    with pytest.raises(InvalidInput, match="more is not int"):
        fetch.definition.decode_call(b'{"args":["u","x"],"kwargs":{}}')


def test_an_unserialisable_result_is_named_as_such():
    with pytest.raises(Unserialisable) as caught:
        double.definition.encode_result({"a": [object()]})
    assert caught.value.message.startswith("unserialisable_result: step 'double'")
    assert caught.value.field == "result.a[0]"


def _returning(annotation: Any) -> StepDef:
    def body(): ...

    if annotation is not Missing:
        body.__annotations__["return"] = annotation
    return StepDef(body, {"name": "body"})


class Missing: ...


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 1),
        (int, 10**30),
        (float, 1),
        (str, "a"),
        (str, Path("/a")),
        (None, None),
        (int | None, None),
        (int | None, 1),
        (list[int], [1]),
        (tuple[int, str], (1, "a")),
        (dict[int, bytes], {1: b"a"}),
        (Sequence[int], [1]),
        (Any, {"a": 1}),
        (object, 1),
        (Missing, {"a": 1}),
        # annotations that say nothing about JSON
        (Iterable[int], ["a"]),
        (list[Iterable[int]], [[1]]),
        (NoReturn, 1),
    ],
)
def test_a_result_that_fits_its_annotation_is_kept(annotation: Any, value: object):
    assert _returning(annotation).encode_result(value) == codec.encode(value)


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, "a", "return int but returned str 'a': Expected `int`, got `str`."),
        (int, None, "return int but returned None"),
        (None, 3, "return None but returned int 3"),
        (int | None, "a", "return int | None but returned str 'a'"),
        (list[int], [1, "a"], "at `$[1]`"),
        (Sequence[int], ["a"], "at `$[0]`"),
        (str, ["a" * 200], "aaa…: Expected"),
    ],
)
def test_a_result_that_contradicts_its_annotation_is_refused(
    annotation: Any, value: object, said: str
):
    with pytest.raises(InvalidResult) as caught:
        _returning(annotation).encode_result(value)
    assert caught.value.message.startswith("step 'body' is annotated to return ")
    assert said in caught.value.message
    assert caught.value.hint


def test_retry_and_fatal_carry_what_the_worker_needs():
    assert Retry("busy", after="30s").after_us == 30_000_000
    assert Retry().after_us is None
    assert str(Retry("busy")) == "busy"
    assert str(Fatal("no such file")) == "no such file"
    with pytest.raises(InvalidInput):
        Retry(after="soon")


def test_running_a_flow_needs_a_registered_engine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flows, "_runners", [])
    with pytest.raises(LocktenderError, match="no engine is loaded"):
        simple.run(3)
    # when a client registers itself, it gets the flow and the arguments as given
    flows.register(lambda flow, args, kwargs: (flow.name, args, dict(kwargs)))
    assert simple.run(3) == (simple.name, (3,), {})  # type: ignore[comparison-overlap]
