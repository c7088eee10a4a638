"""A client inside Starlette and FastAPI applications: its life, its dependency, its errors as answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from locktender import AsyncClient, InvalidInput, StoreUnreachable, connect, flow, step
from locktender.integrations.starlette import client_lifespan, client_of, error_handlers
from locktender.testing import check_history

EXAMPLE = Path(__file__).parents[2] / "examples" / "fastapi_shop" / "shop.py"


@step
async def echo(word: str) -> str:
    return word


@flow(name="echoed")
def echoed(word: str) -> str:
    return echo(word)


async def submit(request: Request) -> JSONResponse:
    run = await client_of(request).submit(echoed, request.query_params["word"], key="one")
    return JSONResponse({"id": run.id, "more": getattr(request.state, "more", None)}, 202)


async def away(request: Request) -> JSONResponse:
    raise StoreUnreachable("no PostgreSQL answers at postgresql://app@db.internal")


def application(**given: Any) -> Starlette:
    routes = [Route("/submit", submit, methods=["POST"]), Route("/away", away)]
    return Starlette(
        routes=[*routes, Mount("/inner", Starlette(routes=routes))],
        exception_handlers=error_handlers(),
        **given,
    )


def test_the_client_lives_as_long_as_the_application(tmp_path: Path):
    seen: list[AsyncClient] = []

    @asynccontextmanager
    async def also(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
        yield {"more": "of its own"}

    async def remember(request: Request) -> JSONResponse:
        seen.append(client_of(request))
        return JSONResponse(None)

    url = tmp_path / "locktender.db"
    app = application(lifespan=client_lifespan(url, also=also))
    app.routes.append(Route("/remember", remember))
    with TestClient(app) as web:
        answer = web.post("/submit?word=a")
        assert (answer.status_code, answer.json()["more"]) == (202, "of its own")
        assert web.post("/inner/submit?word=a").json()["id"] == answer.json()["id"]
        web.get("/remember")
        assert not seen[0].closed
    assert seen[0].closed
    with connect(url) as client:
        assert client.runs.get(answer.json()["id"]).info().state == "queued"


def test_with_an_engine_the_process_does_the_work(tmp_path: Path):
    url = tmp_path / "locktender.db"
    lifespan = client_lifespan(url, engine=True, max_active=1)
    app = application(lifespan=lifespan)

    async def result(request: Request) -> JSONResponse:
        run = await client_of(request).runs.get(request.path_params["run"])
        return JSONResponse(await run.result("60s"))

    app.routes.append(Route("/result/{run}", result))
    with TestClient(app) as web:
        made = web.post("/submit?word=a").json()["id"]
        assert web.get(f"/result/{made}").json() == "a"
        missing = web.get("/result/nothing")
        assert missing.status_code == 404
        assert missing.json().keys() == {"code", "message", "field", "got", "hint"}
    check_history(str(url))


def test_errors_are_answers(tmp_path: Path):
    url = tmp_path / "locktender.db"
    with connect(url) as client:
        client.limits.set_max_active(1)
    with TestClient(application(lifespan=client_lifespan(url))) as web:
        assert web.post("/submit?word=a").status_code == 202
        taken = web.post("/submit?word=b")
        assert (taken.status_code, taken.json()["code"]) == (409, "duplicate_key")
        hidden = web.get("/away")
        assert (hidden.status_code, hidden.headers["retry-after"]) == (503, "1")
        assert "db.internal" not in hidden.text


def test_without_a_lifespan_it_says_what_to_do():
    web = TestClient(application())
    answer = web.post("/submit?word=a")
    assert answer.status_code == 422
    assert "client_lifespan()" in answer.json()["hint"]


def test_settings_need_an_engine():
    with pytest.raises(InvalidInput, match="engine is False"):
        client_lifespan("x.db", max_active=3)


def test_fastapi_is_not_imported():
    code = (
        "import sys, locktender.integrations.starlette; "
        "print(sorted({'fastapi', 'pydantic', 'django', 'asyncpg'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    spec = spec_from_file_location("shop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "shop", module)
    spec.loader.exec_module(module)
    yield module
    check_history(str(tmp_path / ".locktender" / "locktender.db"))


def test_b4_the_example_answers_202_and_429(shop: Any):
    with TestClient(shop.app) as web:
        placed = web.post("/orders", json={"order": 7, "cents": 1250})
        assert placed.status_code == 202
        assert web.get(placed.headers["location"] + "/receipt").json() == "order 7: 12.50"
        assert web.get(placed.headers["location"]).json() == {"state": "succeeded", "error": None}
        assert web.post("/orders", json={"order": "x"}).status_code == 422

        async def hold() -> None:
            client: AsyncClient = web.app_state["locktender"]
            await client.limits.pause()
            await client.limits.set_max_active(2)

        assert web.portal is not None
        web.portal.call(hold)
        first = web.post("/orders", json={"order": 8, "cents": 1})
        again = web.post("/orders", json={"order": 8, "cents": 1})
        assert first.json() == again.json()
        assert web.post("/orders", json={"order": 9, "cents": 1}).status_code == 202
        refused = web.post("/orders", json={"order": 10, "cents": 1})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["code"] == "admission_rejected"
        assert web.get(first.headers["location"]).json()["state"] == "queued"
