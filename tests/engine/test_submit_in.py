"""Runs submitted by an application that has a connection and no store, under a role that may do nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from tests.support.roles import as_role, made_role

from locktender import (
    AsyncClient,
    InvalidInput,
    NotFound,
    RunState,
    embedded_async,
    flow,
    step,
    submit_in,
    submit_in_async,
)
from locktender.observe.checker import check
from locktender.store.postgres import PostgresPlace
from locktender.testing import load_history
from locktender.testing.postgres_server import connected

pytest_plugins = ["locktender.testing.postgres"]
SECONDS = 60


@step
async def treble(n: int) -> int:
    return 3 * n


@flow(name="by an application", tags={"team": "billing"}, priority=7, deadline="1h")
def trebled(n: int) -> int:
    return treble(n)


@pytest.fixture
async def client(postgres_url: str, tmp_path: Path) -> AsyncIterator[AsyncClient]:
    async with embedded_async(postgres_url, work_dir=str(tmp_path)) as made:
        yield made
    assert check(await asyncio.to_thread(load_history, postgres_url)) == []


@pytest.fixture
async def mine(postgres_url: str) -> AsyncIterator[str]:
    """The url of a role that may submit."""
    async with made_role(postgres_url) as role:
        await PostgresPlace(postgres_url).grant("submit", role, revokes=False)
        yield as_role(postgres_url, role)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of the application has no code of the flow; the worker announced it before."""
    monkeypatch.setattr("locktender.client.submit_in.is_elsewhere", lambda _: True)


async def result(client: AsyncClient, run_id: str) -> Any:
    return await (await client.runs.get(run_id)).result(SECONDS)


async def announced(client: AsyncClient) -> None:
    async with asyncio.timeout(SECONDS):
        while trebled.name not in [each.name for each in await client.flows.list()]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_i4_it_exists_if_the_transaction_commits(client: AsyncClient, mine: str):
    async with connected(mine) as raw:
        async with raw.transaction():
            first = await submit_in_async(raw, trebled, 2)
            with pytest.raises(NotFound):
                await client.runs.get(first)
        assert await result(client, first) == 6
        rolled_back = raw.transaction()
        await rolled_back.start()
        gone = await submit_in_async(raw, trebled, 2, notify=False)
        await rolled_back.rollback()
        with pytest.raises(NotFound):
            await client.runs.get(gone)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await raw.fetch("SELECT * FROM locktender.outbox")


async def test_connections_of_every_kind(client: AsyncClient, mine: str):
    def plain() -> list[str]:
        made: list[str] = []
        with psycopg.connect(mine) as one:
            made.append(submit_in(one, trebled, 1))
        with psycopg2.connect(mine) as two:
            made.append(submit_in(two, trebled, n=2))
        two.close()
        engine = sqlalchemy.create_engine(mine.replace("postgresql://", "postgresql+psycopg://"))
        with engine.begin() as three:
            made.append(submit_in(three, trebled, 3, key="three", tags={"a": "b"}))
        engine.dispose()
        return made

    made = await asyncio.to_thread(plain)
    engine = create_async_engine(mine.replace("postgresql://", "postgresql+psycopg://"))
    async with engine.begin() as four:
        made.append(await submit_in_async(four, trebled, 4))
    await engine.dispose()
    assert [await result(client, each) for each in made] == [3, 6, 9, 12]
    info = await (await client.runs.get(made[2])).info()
    assert (info.key, info.tags) == ("three", {"team": "billing", "a": "b"})


@pytest.mark.usefixtures("elsewhere")
async def test_by_name_the_flow_decides_what_was_not_given(client: AsyncClient, mine: str):
    await announced(client)
    async with connected(mine) as raw:
        run_id = await submit_in_async(raw, "by an application", n=5, tags={"a": "b"})
        chosen = await submit_in_async(raw, "by an application", {"n": 6}, priority=0)
    assert [await result(client, each) for each in (run_id, chosen)] == [15, 18]
    info = await (await client.runs.get(run_id)).info()
    assert (info.tags, info.priority) == ({"team": "billing", "a": "b"}, 7)
    assert info.deadline_at is not None
    assert (await (await client.runs.get(chosen)).info()).priority == 0


@pytest.mark.usefixtures("elsewhere")
async def test_by_name_the_leader_refuses_what_cannot_run(client: AsyncClient, mine: str):
    await announced(client)
    async with connected(mine) as raw:
        for name, given, said in (
            ("by an aplication", {"n": 1}, "no worker has announced"),
            ("by an application", {}, "needs the argument 'n'"),
            ("by an application", {"n": "x"}, "argument 'n'"),
            ("by an application", {"n": 1, "m": 2}, "has no parameter 'm'"),
        ):
            run = await client.runs.get(await submit_in_async(raw, name, given))
            with pytest.raises(InvalidInput, match="was refused") as refused:
                await run.result(SECONDS)
            assert said in str(refused.value)
            assert await run.status() == RunState.REJECTED


async def test_what_is_wrong_is_said_before_anything_is_sent(mine: str):
    async with connected(mine) as raw:
        with pytest.raises(InvalidInput, match="invalid schema name"):
            await submit_in_async(raw, trebled, 1, schema='x"; DROP TABLE y')
        with pytest.raises(InvalidInput, match="the connection is async"):
            submit_in(raw, trebled, 1)
        with pytest.raises(InvalidInput, match="is not a connection"):
            submit_in(object(), trebled, 1)
        with pytest.raises(InvalidInput):
            await submit_in_async(raw, trebled, 1, priority="high")  # type: ignore[arg-type]


def test_it_loads_no_driver_of_its_own():
    code = (
        "import sys; from locktender import submit_in; submit_in; "
        "print(sorted({'asyncpg', 'psycopg', 'sqlalchemy'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
