"""Per-tenant limits: one run per tenant at once, and two calls at once to each tenant's own system.

    python examples/tenants.py
    locktender limits set tag 'tenant=*' 1
    locktender run examples/tenants.py:sync --arg customers=4 --tag tenant=acme

A tenant with a hundred runs in the queue does not keep the others waiting.
"""

import asyncio

from locktender import embedded, flow, step


@step(pool="system[{tenant}]")  # a pool per tenant, named by the run's tag
async def push(customer: int) -> int:
    await asyncio.sleep(0.05)
    return customer


@step
def count(customers: list[int]) -> int:
    return len(customers)


@flow
def sync(customers: int = 4) -> int:
    return count(push.map(range(customers)))


if __name__ == "__main__":
    with embedded() as engine:
        engine.limits.set_tag("tenant", limit=1, per_value=True)
        engine.pools.set("system[*]", limit=2)
        runs = [
            engine.submit(sync, 4, tags={"tenant": tenant})
            for tenant in ("acme", "acme", "acme", "globex", "initech")
        ]
        print(runs[2].why())  # waits for the other two of acme
        for run in runs:
            print(run.info().tags["tenant"], run.result(timeout="1m"))
