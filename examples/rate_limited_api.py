"""A rate-limited API: never more than 20 calls a second, however many runs want to call.

    python examples/rate_limited_api.py
    locktender pools set api -1 --rate 20/1s --burst 5
    locktender run examples/rate_limited_api.py:enrich --arg cities=15

The rate is exact over grants: in any stretch of time at most burst + rate × time calls start.
"""

import asyncio

from locktender import Retry, embedded, flow, step


@step(pool="api", retries=5)
async def lookup(city: str) -> dict[str, str]:
    await asyncio.sleep(0.02)  # the call itself
    if city == "":
        raise Retry("the API is busy", after="1s")  # what a 429 would become
    return {"city": city, "country": "Utopia"}


@step
def countries(found: list[dict[str, str]]) -> dict[str, int]:
    names = [each["country"] for each in found]
    return {name: names.count(name) for name in set(names)}


@flow
def enrich(cities: int = 15) -> dict[str, int]:
    return countries(lookup.map([f"city-{number}" for number in range(cities)]))


if __name__ == "__main__":
    with embedded() as engine:
        engine.pools.set("api", limit=-1, rate="20/1s", burst=5)
        print(engine.submit(enrich).result(timeout="1m"))
