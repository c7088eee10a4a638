"""Errors of the public API are printed with the user's lines and at most one of ours."""

from __future__ import annotations

import re
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import locktender
from locktender import (
    AsyncClient,
    Client,
    InvalidFlow,
    InvalidInput,
    LocktenderError,
    NotFound,
    RunFailed,
    StoreError,
    WaitTimeout,
    connect,
    embedded,
    embedded_async,
    flow,
    step,
)
from locktender.base.tracebacks import VARIABLE

pytest_plugins = ["locktender.testing.plugin"]
OURS = str(Path(locktender.__file__).parent)
HERE = str(Path(__file__))


@step
def break_down(number: int) -> int:
    raise ValueError(f"no {number}")


@flow
def failing(number: int) -> int:
    return break_down(number)


@flow
def miswired(number: int) -> int:
    return break_down(number, 2, 3)  # type: ignore[call-arg]


@flow
def raising(number: int) -> int:
    raise ZeroDivisionError(f"by {number}")


@flow
def reading(number: int) -> int:
    return int(Path(f"/no/such/{number}").read_text())


def printed(error: BaseException) -> list[str]:
    """The files of the frames that Python prints, causes and notes too, in order."""
    text = "".join(traceback.format_exception(error))
    return re.findall(r'File "(.*?)", line', text)


def check(error: BaseException) -> None:
    files = printed(error)
    ours = [file for file in files if file.startswith(OURS)]
    bridge = [file for file in files if "concurrent/futures" in file or "asyncio" in file]
    assert len(ours) <= 1, "".join(traceback.format_exception(error))
    assert bridge == []
    assert files[0] == HERE


def unknown(engine: Client) -> object:
    return engine.runs.get("0" * 26)


SYNC: dict[str, tuple[Callable[[Client], Any], type[BaseException]]] = {
    "too many arguments": (lambda engine: engine.submit(failing, 1, 2), InvalidFlow),  # type: ignore[call-overload]
    "a wrong argument": (lambda engine: engine.submit(failing, "x"), InvalidInput),  # type: ignore[call-overload]
    "a wrong option": (lambda engine: engine.submit(failing, 1, deadline="x"), InvalidInput),
    "many": (lambda engine: engine.submit_many(failing, [()]), InvalidFlow),
    "a failed run": (lambda engine: engine.submit(failing, 1).result("60s"), RunFailed),
    "an unknown run": (unknown, NotFound),
    "a timeout": (lambda engine: _paused(engine).result("10ms"), WaitTimeout),
    "a pool": (lambda engine: engine.pools.set("db", limit=0), InvalidInput),
    "a limit": (lambda engine: engine.limits.set_max_active(-7), InvalidInput),
    "why": (lambda engine: engine.why(1 << 40), NotFound),
    "a store": (lambda engine: embedded("nowhere://x"), LocktenderError),
    "a client": (lambda engine: connect("/proc/none/x.db"), StoreError),
    "a step": (lambda engine: step(retries=-1)(break_down.fn), InvalidInput),
    "an option of a step": (lambda engine: break_down.with_options(retrys=1), InvalidInput),  # type: ignore[call-arg]
    "a miswired flow": (lambda engine: engine.submit(miswired, 1), InvalidFlow),
}


def _paused(engine: Client) -> Any:
    engine.limits.pause()
    return engine.submit(failing, 1)


@pytest.mark.parametrize("case", SYNC)
def test_an_error_shows_the_users_line_and_not_ours(engine: Client, case: str):
    act, kind = SYNC[case]

    with pytest.raises(kind) as caught:
        act(engine)

    check(caught.value)


ASYNC: dict[str, tuple[Callable[[AsyncClient], Awaitable[Any]], type[BaseException]]] = {
    "too many arguments": (lambda engine: engine.submit(failing, 1, 2), InvalidFlow),  # type: ignore[call-overload]
    "many": (lambda engine: engine.submit_many(failing, [()]), InvalidFlow),
    "an unknown run": (lambda engine: engine.runs.get("0" * 26), NotFound),
    "a pool": (lambda engine: engine.pools.set("db", limit=0), InvalidInput),
}


async def test_async_errors_show_the_users_line_and_not_ours(tmp_path: Path):
    async with embedded_async(tmp_path / "a.db") as engine:
        for act, kind in ASYNC.values():
            with pytest.raises(kind) as caught:
                await act(engine)
            check(caught.value)
        run = await engine.submit(failing, 1)
        with pytest.raises(RunFailed) as failed:
            await run.result("60s")
        check(failed.value)
        await engine.limits.pause()
        with pytest.raises(WaitTimeout) as late:
            await (await engine.submit(failing, 1)).result("10ms")
        check(late.value)
    with pytest.raises(LocktenderError) as closed:
        await engine.runs.list()
    check(closed.value)
    with pytest.raises(LocktenderError) as nowhere:
        await embedded_async("nowhere://x")
    check(nowhere.value)


def test_lines_of_the_users_own_flow_stay(engine: Client):
    with pytest.raises(InvalidFlow) as miswired_error:
        engine.submit(miswired, 1)
    assert "return break_down(number, 2, 3)" in "".join(
        traceback.format_exception(miswired_error.value)
    )

    with pytest.raises(InvalidFlow) as raised:
        engine.submit(raising, 1)
    check(raised.value)
    assert 'raise ZeroDivisionError(f"by {number}")' in "".join(
        traceback.format_exception(raised.value)
    )

    with pytest.raises(InvalidFlow) as missing:
        engine.submit(reading, 1)
    check(missing.value)
    assert "pathlib" in str(printed(missing.value))  # the user's flow called it


def test_a_failed_run_shows_the_line_of_the_body(engine: Client):
    with pytest.raises(RunFailed) as caught:
        engine.submit(failing, 1).result("60s")

    assert 'raise ValueError(f"no {number}")' in "".join(traceback.format_exception(caught.value))


def test_flow_run_shows_the_users_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOCKTENDER_URL", str(tmp_path / "x.db"))

    with pytest.raises(RunFailed) as caught:
        failing.run(1)

    check(caught.value)


def test_a_variable_keeps_every_line(engine: Client, monkeypatch: pytest.MonkeyPatch):
    for value in ("full", "FULL", " Full "):
        monkeypatch.setenv(VARIABLE, value)

        with pytest.raises(NotFound) as caught:
            unknown(engine)

        assert sum(file.startswith(OURS) for file in printed(caught.value)) > 3


def test_an_unknown_value_of_the_variable_is_named_once(
    engine: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv(VARIABLE, "all")
    for _ in range(2):
        with pytest.raises(NotFound) as caught:
            unknown(engine)
        assert sum(file.startswith(OURS) for file in printed(caught.value)) <= 1
    said = [each.getMessage() for each in caplog.records if VARIABLE in each.getMessage()]
    assert said == [f"{VARIABLE}=all is invalid: use full or short; tracebacks are short."]


def test_a_fault_of_our_own_keeps_every_line(engine: Client, monkeypatch: pytest.MonkeyPatch):
    core: Any = engine._core
    monkeypatch.setattr(core.store, "runs", None)

    with pytest.raises(TypeError) as caught:
        engine.runs.list()

    assert sum(file.startswith(OURS) for file in printed(caught.value)) > 3
