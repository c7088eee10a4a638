"""Two pools and weights: big jobs take more of the memory, all of them share two disks.

    python examples/two_pools_weights.py
    locktender run examples/two_pools_weights.py:convert --pool memory=8 --pool disk=2

A job gets all it needs at once or waits holding nothing, so small and big ones
never lock each other out.
"""

import asyncio

from locktender import embedded, flow, step


@step(pools={"memory": 1, "disk": 1})
async def thumbnail(picture: str) -> str:
    await asyncio.sleep(0.05)
    return f"{picture}: thumbnail"


@step(pools={"memory": 4, "disk": 1})
async def transcode(film: str) -> str:
    await asyncio.sleep(0.2)
    return f"{film}: transcoded"


@step
def catalogue(pictures: list[str], films: list[str]) -> list[str]:
    return sorted(pictures + films)


@flow
def convert(pictures: int = 8, films: int = 4) -> list[str]:
    small = thumbnail.map([f"picture-{number}" for number in range(pictures)])
    big = transcode.map([f"film-{number}" for number in range(films)])
    return catalogue(small, big)


if __name__ == "__main__":
    with embedded() as engine:
        engine.pools.set("memory", limit=8)  # two films at once, or one and four pictures …
        engine.pools.set("disk", limit=2)
        run = engine.submit(convert)
        print(run.why())
        print("\n".join(run.result(timeout="1m")))
