"""Pools: how full each is, who holds its slots and until when, who waits, what it costs, and who changed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response

from locktender.base.clock import SECOND
from locktender.base.durations import spoken
from locktender.base.errors import NotFound
from locktender.base.limits import pool_name
from locktender.client.pool_holders import PoolHolder
from locktender.client.views import PoolInfo, instant
from locktender.observe.holders import MinuteCost
from locktender.server.api.tenancy import shown_pool
from locktender.server.ui.dialogs import NO_REASON, Commands, Dialog, FormField, Given, number
from locktender.server.ui.pages import Done, UiRoute, View
from locktender.server.ui.reading import ActiveWork, PoolWaiter
from locktender.server.ui.words import segment

REASON = FormField("reason", "Why", hint="Kept with the change: who, when, why.")
MAX_CHANGES = 1_000
MAX_SHOWN = 20


class PoolCard(msgspec.Struct, frozen=True):
    """A pool with its holders and waiters, as far as the reader may see whose they are."""

    pool: PoolInfo
    holders: list[PoolHolder]
    waiters: list[PoolWaiter]
    hidden: int
    """Holders of others, who are not shown."""


def _card(view: View, work: ActiveWork, pool: PoolInfo) -> PoolCard:
    def seen(run: str) -> bool:
        return view.principal.sees(work.tags.get(run, {}))

    holders = work.holders.get(pool.name, [])
    waiters = work.waiters.get(pool.name, [])
    shown = [each for each in holders if seen(each.run)]
    return PoolCard(
        pool, shown, [each for each in waiters if seen(each.run)], len(holders) - len(shown)
    )


def _shown(view: View, pool: PoolInfo) -> bool:
    return not view.principal.tags or shown_pool(view.principal, pool) is not None


async def show_pools(view: View) -> Response:
    work = await view.work()
    pools = [pool for pool in work.pools if _shown(view, pool)]
    cards = [_card(view, work, pool) for pool in pools]
    bounded = [pool for pool in pools if pool.limit is not None]
    return await view.page(
        "pools.html",
        cards=cards,
        claimed=sum(pool.used for pool in bounded),
        total=sum(pool.limit or 0 for pool in bounded),
        pending=sum(pool.waiting for pool in pools),
        most=MAX_SHOWN,
    )


async def show_pool(view: View) -> Response:
    name = pool_name(view.path("pool"))
    info = await _current(view, name)
    if not _shown(view, info):
        raise NotFound(f"there is no pool {name!r}.", field="pool", got=name)
    card = _card(view, await view.work(), info)
    alone = not view.principal.tags
    gates = {f"{kind}:{name}" for kind in ("pool", "rate", "reserved", "paused")}
    changes = await view.client.limits.history(MAX_CHANGES) if alone else []
    costs = await view.shared.costs(soon=view.fragment != "costs") if alone else []
    now = (await view.work()).now
    return await view.page(
        "pool.html",
        card=card,
        pool=info,
        changes=[each for each in changes if (each.kind, each.name) == ("pool", name)][:MAX_SHOWN],
        costs=None if costs is None else [each for each in costs if each.gate in gates],
        waiters=[(each, instant(each.since)) for each in card.waiters[:MAX_SHOWN]],
        history=_history(view.shared.history(gates, now)) if alone and costs is not None else None,
    )


class PoolHistory(msgspec.Struct, frozen=True):
    """What waiting for a pool cost, minute by minute."""

    times: list[int]
    seconds: list[float]
    """Of waits that were over in that minute, added up."""
    passed: list[int]


def _history(minutes: list[MinuteCost]) -> PoolHistory | None:
    """None: nothing waited in all that time."""
    if not any(each.waits for each in minutes):
        return None
    return PoolHistory(
        [each.at // SECOND for each in minutes],
        [round(each.us / SECOND, 1) for each in minutes],
        [each.waits for each in minutes],
    )


async def _current(view: View, name: str) -> PoolInfo:
    """From the shared reading; a pool that is not in it is asked for by its name."""
    found = next((each for each in (await view.work()).pools if each.name == name), None)
    return found or await view.client.pools.get(name)


async def ask_set(view: View) -> Response:
    name = pool_name(view.path("pool"))
    pool = await view.client.pools.get(name)
    limit = -1 if pool.limit is None else pool.limit
    lease = "" if pool.lease is None else spoken(round(pool.lease * 1_000_000)).replace(" ", "")

    def commands(given: Given) -> Commands:
        return _set_commands(view, name, pool_settings(given, pool), given)

    return await view.dialog(
        Dialog(
            f"Set pool {name}",
            f"In force at once, over all processes, and kept over restarts. {pool.used} slots are in use,"
            f" {pool.waiting} tasks wait.",
            "Set",
            f"/pools/{segment(name)}/set",
            commands,
            fields=(
                FormField("limit", "Slots", "number", str(limit), "−1: unlimited.", required=True),
                FormField("rate", "Rate", value=pool.rate or "", hint="Starts per time: 60/min. Empty: none."),
                FormField("burst", "Burst", "number", str(pool.burst or ""), "Starts at once under a rate."),
                FormField(
                    "lease", "Lease of a dead holder", value=lease,
                    hint="30s, 5m. Empty: as long as its worker's lease.",
                ),
                REASON,
            ),
            hidden={"version": pool.version},
            notes=("Lowered below what is in use, nothing new starts until enough slots come free.",),
        )
    )  # fmt: skip


def pool_settings(given: Given, pool: PoolInfo | None = None) -> dict[str, Any]:
    """What a form sets, as the API takes it. None takes away what the pool has."""
    found: dict[str, Any] = {"limit": number(given.get("limit", ""))}
    rate, burst, lease = (given.get(each, "") for each in ("rate", "burst", "lease"))
    if rate or (pool is not None and pool.rate is not None):
        found["rate"] = rate or None
    if rate and burst:
        found["burst"] = number(burst)
    if lease or (pool is not None and pool.lease is not None):
        found["lease"] = lease or None
    return found


def _set_commands(view: View, name: str, settings: dict[str, Any], given: Given) -> Commands:
    limit = settings["limit"]
    options = {
        key: "none" if value is None else value for key, value in settings.items() if key != "limit"
    }
    return Commands(
        view.cli("pools set", name, limit, **options),
        view.curl("PUT", f"/pools/{segment(name)}", settings),
        NO_REASON if given.get("reason") else "",
    )


def reasoned(cli: str, curl: str) -> Callable[[Given], Commands]:
    """Commands of an action that asks for nothing but a reason."""
    return lambda given: Commands(cli, curl, NO_REASON if given.get("reason") else "")


async def set_pool(view: View) -> Response:
    name = pool_name(view.path("pool"))
    sent = {each: view.sent(each) for each in ("limit", "rate", "burst", "lease")}
    before = await view.client.pools.get(name)
    await view.changing().pools.set(name, **pool_settings(sent, before))
    pool = await view.client.pools.get(name)
    text = f"Pool {name} is set to {pool.limit_text}; {pool.used} in use, {pool.waiting} waiting."
    return await view.done(Done(text))


def pause_verb(view: View, *, paused: bool) -> str:
    """What a dialog offers. Its commands stay as they were when it opened, whatever happened since."""
    if view.fragment == "commands":
        return view.request.url.path.rpartition("/")[2]
    return "resume" if paused else "pause"


async def ask_pause(view: View) -> Response:
    name = pool_name(view.path("pool"))
    pool = await view.client.pools.get(name)
    verb = pause_verb(view, paused=pool.paused)
    text = (
        "Tasks that wait for it start again; the limit is as it was before."
        if verb == "resume"
        else "Nothing more that needs it starts. Running tasks keep their slots until they end."
    )
    return await view.dialog(
        Dialog(
            f"{verb.capitalize()} pool {name}?",
            text,
            f"{verb.capitalize()} it",
            f"/pools/{segment(name)}/{verb}",
            reasoned(
                view.cli(f"pools {verb}", name),
                view.curl("POST", f"/pools/{segment(name)}/{verb}"),
            ),
            fields=(REASON,),
            hidden={"version": pool.version},
        )
    )


async def pause_pool(view: View) -> Response:
    name = pool_name(view.path("pool"))
    await view.changing().pools.pause(name)
    return await view.done(Done(f"Pool {name} is paused."))


async def resume_pool(view: View) -> Response:
    name = pool_name(view.path("pool"))
    await view.changing().pools.resume(name)
    return await view.done(Done(f"Pool {name} goes on."))


async def ask_reset(view: View) -> Response:
    name = pool_name(view.path("pool"))
    pool = await view.client.pools.get(name)
    return await view.dialog(
        Dialog(
            f"Reset pool {name}?",
            "It goes back to what code or the settings file declares; unlimited where they declare nothing.",
            "Reset it",
            f"/pools/{segment(name)}/reset",
            reasoned(
                view.cli("pools reset", name),
                view.curl("POST", f"/pools/{segment(name)}/reset"),
            ),
            danger=True,
            fields=(REASON,),
            hidden={"version": pool.version},
        )
    )


async def reset_pool(view: View) -> Response:
    name = pool_name(view.path("pool"))
    await view.changing().pools.reset(name)
    return await view.done(Done(f"Pool {name} is back to what was declared."))


async def ask_new(view: View) -> Response:
    def commands(given: Given) -> Commands:
        name = pool_name(given["name"])
        return _set_commands(view, name, pool_settings(given), given)

    return await view.dialog(
        Dialog(
            "Set a pool",
            "A pool bounds how many steps use a resource at once, over all runs and processes.",
            "Set",
            "/pools/-/new",
            commands,
            fields=(
                FormField(
                    "name", "Name", hint='As steps name it: @step(pool="db").', required=True
                ),
                FormField("limit", "Slots", "number", "4", "−1: unlimited.", required=True),
                REASON,
            ),
        )
    )


async def new_pool(view: View) -> Response:
    name = pool_name(view.sent("name"))
    await view.changing().pools.set(name, **pool_settings({"limit": view.sent("limit")}))
    return await view.done(
        Done(f"Pool {name} is set to {view.sent('limit')}.", f"/pools/{segment(name)}")
    )


ROUTES = (
    UiRoute("/pools", show_pools),
    UiRoute("/pools/-/new", ask_new, scope="operate"),
    UiRoute("/pools/-/new", new_pool, "POST", "operate"),
    UiRoute("/pools/{pool}", show_pool),
    UiRoute("/pools/{pool}/set", ask_set, scope="operate"),
    UiRoute("/pools/{pool}/set", set_pool, "POST", "operate"),
    UiRoute("/pools/{pool}/pause", ask_pause, scope="operate"),
    UiRoute("/pools/{pool}/pause", pause_pool, "POST", "operate"),
    UiRoute("/pools/{pool}/resume", ask_pause, scope="operate"),
    UiRoute("/pools/{pool}/resume", resume_pool, "POST", "operate"),
    UiRoute("/pools/{pool}/reset", ask_reset, scope="operate"),
    UiRoute("/pools/{pool}/reset", reset_pool, "POST", "operate"),
)
