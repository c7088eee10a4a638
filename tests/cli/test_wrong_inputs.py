"""Wrong inputs at many places: each is refused, says what and which value, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_harness import CommandResult, batch, locktender

from locktender import Client, LocktenderError, connect, embedded, flow, secret, step
from locktender.base.errors import InvalidFlow, InvalidInput, InvalidSettings, StoreError


@step
def one(x: int) -> int:
    return x


@flow
def simple(x: int) -> int:
    return one(x)


@flow
def lettered(x: str) -> Any:
    return one.map([x])


def body(use: Callable[[], Any]) -> Callable[[Client, Path], Any]:
    """A flow whose body is `use`."""

    def wrong() -> Any:
        return use()

    made = flow(name=f"wrong {id(use)}")(wrong)
    return lambda client, _: client.submit(made)


Wrong = tuple[Callable[[Client, Path], Any], type[LocktenderError], str, str]
"""What is done, the error, what the message says, and what the hint says."""

API: dict[str, Wrong] = {
    # decorators
    "unknown option": (lambda *_: step(retrys=3), InvalidFlow, "no option 'retrys'", "'retries'"),  # type: ignore[call-overload]
    "an option of a run": (
        lambda *_: step(prority=3),  # type: ignore[call-overload]
        InvalidFlow,
        "no option 'prority'",
        r"'priority'. It is given to a run: submit\(flow",
    ),
    "an option of a map": (
        lambda *_: one.with_options(on_eror="collect"),  # type: ignore[call-arg]
        InvalidFlow,
        "no option 'on_eror'",
        r"'on_error'. It is given to a map: step.map\(",
    ),
    "no duration": (
        lambda *_: step(timeout="soon", name="w1")(one.fn),
        InvalidInput,
        "timeout is not a duration",
        '"90s"',
    ),
    "a pool twice": (
        lambda *_: step(pool="db", pools={"db": 2}, name="w2")(one.fn),
        InvalidFlow,
        "pool 'db' is named twice",
        "not in both",
    ),
    "no exception": (
        lambda *_: step(retry_on="ValueError", name="w3")(one.fn),  # type: ignore[call-overload]
        InvalidFlow,
        "retry_on takes exception classes",
        "TimeoutError",
    ),
    "a flow of a step": (lambda *_: flow(one), InvalidFlow, "defined with def", "@flow def"),
    "no parallelism": (
        lambda *_: flow(max_parallel=0, name="w4")(one.fn),
        InvalidFlow,
        "max_parallel must be 1 or more",
        "no bound",
    ),
    # bodies of flows
    "a sum": (
        body(lambda: one(one(1) + 1)),
        InvalidFlow,
        "result of 'one' cannot be calculated with",
        "Calculate in a step",
    ),
    "a product": (body(lambda: 2 * one(1)), InvalidFlow, "cannot be calculated", "in a step"),
    "a number": (body(lambda: int(one(1))), InvalidFlow, "cannot be calculated", "in a step"),
    "a range": (body(lambda: list(range(one(1)))), InvalidFlow, "cannot be calculated", "a step"),
    "a set": (body(lambda: one({one(1)})), InvalidFlow, "inside a set", "lists, tuples"),  # type: ignore[arg-type]
    "a map of a number": (
        body(lambda: one.map(5)),  # type: ignore[arg-type]
        InvalidFlow,
        "cannot be mapped over a int",
        r"Give .map\(\) a list",
    ),
    "no handle": (
        body(lambda: one.with_options(after=3)(1)),  # type: ignore[arg-type]
        InvalidFlow,
        "after= takes handles",
        "what calling a step returned",
    ),
    "an option in a call": (
        body(lambda: one(1, retris=3)),  # type: ignore[call-arg]
        InvalidFlow,
        "unexpected keyword argument 'retris'",
        r"'retries', given as step.with_options\(...\)",
    ),
    "errors for a number": (
        body(lambda: one.map(one.map([1], on_error="collect"), take_errors=True)),  # type: ignore[call-overload]
        InvalidFlow,
        "with errors, but its first parameter is int",
        r"int \| StepError",
    ),
    # the client
    "a run's option": (
        lambda client, _: client.submit(simple, 1, prority=3),
        InvalidFlow,
        "unexpected keyword argument 'prority'",
        "'priority', an option of submit",
    ),
    "one call as many": (
        lambda client, _: client.submit_many(simple, 5),  # type: ignore[call-overload]
        InvalidInput,
        "one entry per run, not int",
        "for a single run",
    ),
    "a text as many": (
        lambda client, _: client.submit_many(lettered, "abc"),
        InvalidInput,
        "one entry per run, not str",
        "for a single run",
    ),
    "a dict as many": (
        lambda client, _: client.submit_many(lettered, {"x": "a"}),
        InvalidInput,
        "one entry per run, not dict",
        "for a single run",
    ),
    "an instant": (
        lambda client, _: client.submit(simple, 1, deadline=datetime.now(UTC)),  # type: ignore[arg-type]
        InvalidInput,
        "deadline is not a duration",
        "number of seconds",
    ),
    "the flow's number": (
        lambda client, _: client.runs.list(flow=3),  # type: ignore[arg-type]
        InvalidInput,
        "flow must be text",
        "printable characters",
    ),
    "a rate of none": (
        lambda client, _: client.pools.set("db", rate="0/s"),
        InvalidInput,
        "rate must be 1 or more",
        "whole number",
    ),
    "a secret's value": (
        lambda *_: secret("hunter2"),
        InvalidInput,
        "given by reference",
        r"secret\(\"env:NAME\"\)",
    ),
    # settings and urls
    "a tag's limit": (
        lambda _, path: embedded(path, tags={"tenant=*": {"limit": "x"}}),
        InvalidSettings,
        r"tags\.tenant=\*\.limit must be a whole number",
        "-1 for unlimited",
    ),
    "a pool's option": (
        lambda _, path: embedded(path, pools={"db": {"limt": 4}}),
        InvalidSettings,
        "pools.db.limt is not known",
        "'limit'",
    ),
    "a share of 80": (
        lambda _, path: embedded(path, memory_high=80),
        InvalidSettings,
        "memory_high must be above 0 and at most 1",
        "0.8",
    ),
    "a line break": (
        lambda _, path: connect(f"{path}\n"),
        InvalidInput,
        "line break",
        "stray line break",
    ),
    "a directory": (
        lambda _, path: connect(f"{path.parent}/stores/"),
        InvalidInput,
        "names a directory",
        "stores/locktender.db",
    ),
    "an option of a url": (
        lambda *_: connect("postgresql://app@db.invalid/x?poled=true"),
        InvalidInput,
        "poled is not an option of a url",
        "'pooled'",
    ),
    "an option of the driver": (
        lambda *_: connect("postgresql://app@db.invalid/x?ssmode=require"),
        InvalidInput,
        "ssmode is not an option of a url",
        "'sslmode'",
    ),
    "a folder that is not there": (
        lambda _, path: connect(path.parent / "not" / "there" / "locktender.db"),
        StoreError,
        "there does not exist",
        "An engine makes missing folders",
    ),
    "a schema": (
        lambda *_: connect("postgresql://app@db.invalid/x?schema=a b"),
        InvalidInput,
        "invalid schema name",
        "lower case letters",
    ),
}

CLI: dict[str, tuple[list[str], str, str]] = {
    # In the words of whichever typer is installed.
    "port": (["server", "--port", "99999"], "--port", "99999"),
    "port in words": (["worker", "flows.py", "--metrics-port=abc"], "--metrics-port", "'abc'"),
    "argument twice": (
        ["submit", "flows.py:simple", "--args", "[1]", "--arg", "x=2"],
        "multiple values for argument 'x'",
        "simple(x: int) -> int",
    ),
    "no value": (
        ["server", "--port", "0", "--set", "grace"],
        "name=value. Got 'grace'",
        "grace=5s",
    ),
    "no address": (
        ["server", "--port", "0", "--host", "nowhere.invalid"],
        "'nowhere.invalid' is not an address",
        "127.0.0.1",
    ),
    "no bound": (
        ["server", "--port", "0", "--spawn", "flows.py", "--max-workers", "0"],
        "--spawn needs max_workers",
        "--max-workers 3",
    ),
    "no such file": (
        ["server", "--port", "0", "--spawn", "flow.py", "--max-workers", "1"],
        "there is no file flow.py",
        "'flows.py'",
    ),
    "prune for ever": (["db", "prune", "--older-than", "forever"], "Got 'forever'", '"1h30m"'),
    "copy onto itself": (["db", "copy", "a.db", "a.db"], "are the same store", "a new file"),
    "a number in words": (["queue", "list", "--limit", "x"], "Got 'x'", "--limit 20"),
}

FILES: dict[str, tuple[bytes, str, str]] = {
    "no value": (b"grace = \n", "is not valid TOML", "grace = "),
    "no text": (b"\xff\xfe", "is not valid TOML", "UTF-8"),
    "a tag of 0": (
        b'[tags]\n"tenant=*" = 0\n',
        "tags.tenant=*.limit must not be 0",
        "limits pause",
    ),
    "unknown": (b'gracee = "5s"\n', "gracee is not a setting", "'grace'"),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with connect(tmp_path_factory.mktemp("wrong") / "locktender.db") as opened:
        yield opened


@pytest.mark.parametrize("name", API)
def test_the_api_refuses_it(name: str, client: Client, tmp_path: Path):
    use, kind, message, hint = API[name]
    path = tmp_path / "locktender.db"
    with pytest.raises(kind, match=message) as caught:
        use(client, path)
    assert caught.value.field
    assert "hunter2" not in str(caught.value.as_dict())
    with pytest.raises(LocktenderError, match=hint):
        raise InvalidInput(caught.value.hint or "")
    assert client.runs.list() == []
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CommandResult]:
    made = tmp_path_factory.mktemp("cli-wrong")
    (made / "flows.py").write_text(
        "from locktender import flow, step\n\n\n@step\ndef one(x: int) -> int:\n    return x\n\n\n"
        "@flow\ndef simple(x: int) -> int:\n    return one(x)\n"
    )
    connect(made / ".locktender" / "locktender.db").close()
    return batch({name: words for name, (words, _, _) in CLI.items()}, made)


@pytest.mark.parametrize("name", CLI)
def test_the_command_line_refuses_it(name: str, said: dict[str, CommandResult]):
    _, message, hint = CLI[name]
    _refused(said[name], message, hint)


@pytest.mark.parametrize("name", FILES)
def test_a_settings_file_is_refused(name: str, tmp_path: Path):
    data, message, hint = FILES[name]
    (tmp_path / "locktender.toml").write_bytes(data)
    answer = locktender("config", "show", cwd=tmp_path)
    assert "locktender.toml" in answer.err
    _refused(answer, message, hint)


def _refused(answer: CommandResult, message: str, hint: str) -> None:
    text = " ".join(answer.err.split())
    assert answer.code == 2, answer
    assert answer.out == ""
    assert message in text
    assert hint in text
    assert "hint:" in text
    assert "Traceback" not in text
