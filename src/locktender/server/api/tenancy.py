"""What a token that is bound to tags may see and change, route by route.

own      only what has all of its tags: runs, their queue, waits and events, schedules, tokens
numbers  shared things: as they are, but without names of others
same     the same for everyone: flows, the state of the server
none     refused with 403: settings and machines that all share

Each route says which (`ApiRoute.tenant`); what says nothing is `none`. What is
another's is not there: it answers as if it did not exist, with no hint of a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from locktender.base import names
from locktender.base.errors import DuplicateKey, InvalidInput, NotFound
from locktender.observe.tenants import Own, hidden_blame, hidden_timeline, hidden_why, named_runs
from locktender.server.api.answers import Forbidden

if TYPE_CHECKING:
    from locktender.client.views import LimitInfo, PoolInfo, RunInfo
    from locktender.observe.blame import Blame
    from locktender.observe.timeline import Timeline
    from locktender.observe.why import Why
    from locktender.server.api.principal import Principal
    from locktender.server.api.routing import ApiCall
    from locktender.server.state import Health

Tenant = Literal["own", "numbers", "same", "none"]
T = TypeVar("T")


def check_tenant(principal: Principal, tenant: Tenant) -> None:
    """Refuses what a bound token may not do at all."""
    if principal.tags and tenant == "none":
        raise Forbidden(
            f"this token is only for {spoken_tags(principal.tags)}, and this concerns everyone.",
            field="scope",
            hint="Use a token that is bound to no tags.",
        )


def spoken_tags(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in tags.items())


def without_names(error: NotFound) -> NotFound:
    """A hint may name what belongs to others."""
    return NotFound(error.message, field=error.field, got=error.got)


def own_tags(principal: Principal, tags: Mapping[str, Any] | None) -> dict[str, Any]:
    """`tags` with those of the principal. Raises `InvalidInput` where they contradict each other."""
    for key, value in principal.tags.items():
        if tags and key in tags and str(tags[key]) != value:
            raise InvalidInput(
                f"this token is only for {spoken_tags(principal.tags)}.",
                field=f"tags.{key}",
                got=tags[key],
                hint=f"Leave out {key}, or use another token.",
            )
    return {**(tags or {}), **principal.tags}


def own_key(principal: Principal, key: str | None) -> str | None:
    """A key of one tenant is not that of another: it stands behind the tags."""
    if key is None or not principal.tags:
        return key
    return f"{key_head(principal)}{key}"


def shown_run(principal: Principal, info: RunInfo) -> RunInfo:
    """With its key as the tenant chose it."""
    if not principal.tags or info.key is None:
        return info
    return msgspec.structs.replace(info, key=info.key.removeprefix(key_head(principal)))


def show_own_key(principal: Principal, error: DuplicateKey | InvalidInput) -> None:
    """An error about a key names the one that was sent."""
    head = key_head(principal)
    if head and isinstance(error.got, str) and error.got.startswith(head):
        error.got = error.got.removeprefix(head)
        error.message = error.message.replace(head, "", 1)
        if len(error.got) <= names.MAX_NAME < len(error.got) + len(head):
            error.message = f"key is longer than {names.MAX_NAME - len(head)} characters."
            error.hint = "The tags of this token are kept with it, and take the rest."


def key_head(principal: Principal) -> str:
    """What stands before the keys of a tenant in the store."""
    # A tenant chooses its key: without this, that of `a` for `b:c` would be that of `a:b` for `c`.
    tags = (f"{_marked(name)}={_marked(value)}" for name, value in sorted(principal.tags.items()))
    return f"{','.join(tags)}:" if principal.tags else ""


def _marked(text: str) -> str:
    for each in "%:,=":
        text = text.replace(each, f"%{ord(each):02X}")
    return text


async def hide_why(call: ApiCall, info: RunInfo, why: Why) -> Why:
    """Of a run that is theirs."""
    if not call.principal.tags:
        return why
    own = {info.id}
    for run in named_runs(why) - own:
        if await call.is_own(run):
            own.add(run)
    return hidden_why(why, Own(own, info.number, key_head(call.principal)))


def hide_blame(call: ApiCall, blame: Blame) -> Blame:
    if not call.principal.tags:
        return blame
    named = [each for gate in blame.gates for each in gate.to]
    own = {each.run for each in named if call.principal.sees(each.tags)}
    return hidden_blame(blame, {blame.run, *own})


async def hide_timeline(call: ApiCall, drawn: Timeline) -> Timeline:
    if not call.principal.tags:
        return drawn
    named = {each.run: each.tags for what in drawn.whats for each in what.to}
    own = {run for run, tags in named.items() if call.principal.sees(tags)}
    for run in set(drawn.holders) - own:
        if await call.is_own(run):
            own.add(run)
    return hidden_timeline(drawn, {drawn.run, *own})


def shown_pool(principal: Principal, pool: PoolInfo) -> PoolInfo | None:
    """A pool of one key belongs to the principal with that value as a tag; None: to another one."""
    _, bracket, key = pool.name.removesuffix("]").partition("[")
    if bracket and key != "*" and key not in principal.tags.values():
        return None
    return msgspec.structs.replace(pool, paused_by="")


def shown_limit(principal: Principal, limit: LimitInfo) -> LimitInfo | None:
    """None: it names others. Weights of fair turns do too, so that only the turns themselves are shown."""
    if limit.kind == "run":
        return None
    if limit.kind == "fair":
        return msgspec.structs.replace(limit, value="fair turns", live=None, declared=None, rule={})
    if limit.kind == "tag":
        key, equals, value = limit.name.partition("=")
        if equals and value != "*" and principal.tags.get(key) != value:
            return None
    return limit


def public_health(found: Health) -> Health:
    """For anyone: how it is, without names of processes, rules and sessions of the database."""
    return msgspec.structs.replace(
        found, problems=(), leader=None if found.leader is None else "elected", worker=None,
        held_up_by=(),
    )  # fmt: skip
