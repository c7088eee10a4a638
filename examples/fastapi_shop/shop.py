"""A shop whose orders are billed by locktender: 202 with the run's address, 429 when too much is waiting.

    pip install locktender fastapi
    uvicorn shop:app

One process does everything here. In production leave `engine=True` out, and start `locktender server` and
`locktender worker shop.py` beside the application, all on one `postgresql://` url (LOCKTENDER_URL).
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Response
from pydantic import BaseModel

from locktender import AsyncClient, flow, step
from locktender.integrations.starlette import client_lifespan, client_of, error_handlers


@step(pool="bank", retries=2)
async def charge(order: int, cents: int) -> int:
    await asyncio.sleep(0.01)  # the bank's answer
    print(f"order {order} is charged")
    return cents


@step
async def receipt(order: int, cents: int) -> str:
    return f"order {order}: {cents / 100:.2f}"


@flow(name="bill")
def bill(order: int, cents: int) -> str:
    return receipt(order, charge(order, cents))


app = FastAPI(
    lifespan=client_lifespan(engine=True, pools={"bank": 4}, max_active=50),
    exception_handlers=error_handlers(),
)
Client = Annotated[AsyncClient, Depends(client_of)]


class Order(BaseModel):
    order: int
    cents: int


@app.post("/orders", status_code=202)
async def place(order: Order, client: Client, response: Response) -> dict[str, str]:
    """One order is billed once, however often the browser sends it."""
    run = await client.submit(bill, order.order, order.cents, key=f"order-{order.order}")
    response.headers["location"] = f"/orders/{run.id}"
    return {"id": run.id}


@app.get("/orders/{run_id}")
async def look(run_id: str, client: Client) -> dict[str, Any]:
    info = await (await client.runs.get(run_id)).info()
    return {"state": info.state, "error": None if info.error is None else info.error.text()}


@app.get("/orders/{run_id}/receipt")
async def fetch(run_id: str, client: Client) -> str:
    text: str = await (await client.runs.get(run_id)).result("30s")
    return text
