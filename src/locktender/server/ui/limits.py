"""Limits: everything that bounds runs, what each costs in waiting, and who changed what when."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

from starlette.responses import Response

from locktender.base.errors import InvalidInput, NotFound
from locktender.base.limits import Placement
from locktender.base.names import did_you_mean
from locktender.client.views import LimitInfo
from locktender.server.api.tenancy import shown_limit
from locktender.server.ui.dialogs import NO_REASON, Commands, Dialog, FormField, Given, number
from locktender.server.ui.pages import Done, UiRoute, View
from locktender.server.ui.pools import REASON, pause_verb, reasoned
from locktender.server.ui.reading import rule_name
from locktender.server.ui.words import segment

MAX_CHANGES = 50
MEANING = {
    "max_concurrent_runs": "Runs that execute at once",
    "max_active": "Queued and running runs together: more are refused",
    "age_boost": "Waiting so long counts as one priority more",
    "max_bypass": "How often a task may be overtaken before slots are kept for it",
    "max_starts_per_cycle": "Runs that start in one decision of the leader",
    "max_waiting": "Runs that may wait for a time or an event",
    "placement": "Which worker gets a task",
    "strict_pools": "Refuse steps whose pool was never set",
    "topic_retention": "How long events of a topic are kept",
}
ON_OFF = {"True": "on", "False": "off"}
SETTABLE = frozenset(MEANING)
CHOICES: dict[str, tuple[tuple[str, str], ...]] = {
    "strict_pools": (("true", "on"), ("false", "off")),
    "placement": tuple((each, each) for each in get_args(Placement)),
}
HINTS = {
    "max_concurrent_runs": "−1: unlimited.",
    "max_active": "−1: unlimited.",
    "max_waiting": "−1: unlimited.",
    "age_boost": "A duration: 5m. 0: off.",
    "topic_retention": "A duration: 7d.",
}


async def show_limits(view: View) -> Response:
    work = await view.work()
    found = await view.client.limits.list()
    alone = not view.principal.tags
    if not alone:
        seen = [shown_limit(view.principal, each) for each in found]
        found = [each for each in seen if each is not None]
    waiting: Counter[str] = Counter()
    for counter, runs in work.shut_for.items():
        waiting[rule_name(counter)] += runs
    return await view.page(
        "limits.html",
        main=[each for each in found if each.kind in ("runs", "active", "tag", "fair")],
        pauses=[each for each in found if each.kind in ("flow", "run")],
        engine=[each for each in found if each.kind == "engine"],
        meaning=MEANING,
        tag_waiting=waiting,
        work=work,
        costs=await view.shared.costs(soon=view.fragment != "costs") if alone else [],
        changes=await view.client.limits.history(MAX_CHANGES) if alone else [],
        settable=SETTABLE,
        in_force=in_force,
    )


def meaning_of(limit: LimitInfo) -> str:
    if limit.kind == "tag":
        each = limit.name.endswith("=*")
        return f"Runs with the tag {limit.name}" if not each else "Runs of each value of the tag"
    if limit.kind == "fair":
        return "Queued runs take turns by this tag"
    return MEANING.get(limit.name, "")


def in_force(limit: LimitInfo) -> str:
    """As the page says it."""
    return ON_OFF.get(limit.value, limit.value)


def given_value(limit: LimitInfo) -> str:
    """What is in force, as it can be given back."""
    plain = limit.value.replace(",", "").partition(" ")[0]
    if limit.name == "strict_pools":
        return plain.lower()
    return {"unlimited": "-1", "off": "0"}.get(plain, plain)


def setting(name: str, text: str) -> Any:
    """What was written into a form, or stands in a command, as the API takes it."""
    return (
        {"true": True, "false": False}.get(text, text) if name == "strict_pools" else number(text)
    )


async def _limit(view: View) -> LimitInfo:
    name = view.path("limit")
    found = {each.name: each for each in await view.client.limits.list()}
    if name not in found:
        hint = did_you_mean(name, found)
        raise NotFound(f"there is no limit {name!r}.", field="limit", got=name, hint=hint)
    return found[name]


async def ask_set(view: View) -> Response:
    limit = await _limit(view)
    name = limit.name
    if limit.kind == "tag":
        fields = (
            FormField("limit", "Runs at once", "number", hint="−1: unlimited; empty: as it is."),
            FormField("max_active", "Queued and running runs", "number", hint="Empty: as it is."),
            REASON,
        )
    else:
        choices = CHOICES.get(name, ())
        kind = "choice" if choices else "text"
        fields = (
            FormField(
                "value", "Value", kind, given_value(limit), HINTS.get(name, ""), True, choices
            ),
            REASON,
        )

    def commands(given: Given) -> Commands:
        if limit.kind == "tag":
            return _tag_commands(view, name, given)
        value = setting(name, given["value"])
        return Commands(
            view.cli("limits set", name, given["value"]),
            view.curl("PUT", f"/limits/{segment(name)}", {"value": value}),
            NO_REASON if given.get("reason") else "",
        )

    return await view.dialog(
        Dialog(
            f"Set {name}",
            f"{meaning_of(limit)}. It is {in_force(limit)} now. In force at once, over all processes.",
            "Set",
            f"/limits/{segment(name)}/set",
            commands,
            fields=fields,
            hidden={"version": limit.version},
        )
    )


async def set_limit(view: View) -> Response:
    limit = await _limit(view)
    if limit.kind == "tag":
        await _set_tag(view, limit.name)
    else:
        await view.changing().limits.set(limit.name, setting(limit.name, view.sent("value")))
    return await view.done(Done(f"{limit.name} is {in_force(await _limit(view))}."))


def tag_settings(given: Given) -> dict[str, Any]:
    """What a form sets of a tag's rule, as the API takes it; what is empty stays as it is."""
    found = {name: number(given[name]) for name in ("limit", "max_active") if given.get(name)}
    if not found:
        raise InvalidInput("fill in how many runs.", field="limit")
    return found


async def _set_tag(view: View, rule: str) -> None:
    key, equals, value = rule.partition("=")
    each = value == "*"
    found = tag_settings({name: view.sent(name) for name in ("limit", "max_active")})
    await view.changing().limits.set_tag(
        key, None if each or not equals else value, per_value=each, **found
    )


def _tag_commands(view: View, rule: str, given: Given) -> Commands:
    found = tag_settings(given)
    words = [rule, found["limit"]] if "limit" in found else [rule]
    return Commands(
        view.cli("limits set tag", *words, max_active=found.get("max_active")),
        view.curl("PUT", f"/limits/tags/{segment(rule)}", found),
        NO_REASON if given.get("reason") else "",
    )


async def ask_pause(view: View) -> Response:
    limit = await _limit(view)
    verb = pause_verb(view, paused=limit.paused)
    text = (
        "Runs that wait for it start again."
        if verb == "resume"
        else "No more runs start under it. Those that execute go on."
    )
    named = ("tag", limit.name) if limit.kind == "tag" else (limit.name,)
    return await view.dialog(
        Dialog(
            f"{verb.capitalize()} {limit.name}?",
            text,
            f"{verb.capitalize()} it",
            f"/limits/{segment(limit.name)}/{verb}",
            reasoned(
                view.cli(f"limits {verb}", *named),
                view.curl("POST", f"/limits/{segment(limit.name)}/{verb}"),
            ),
            fields=(REASON,),
            hidden={"version": limit.version},
        )
    )


async def pause_limit(view: View) -> Response:
    name = view.path("limit")
    await view.changing().limits.pause(name)
    return await view.done(Done(f"{name} is paused."))


async def resume_limit(view: View) -> Response:
    name = view.path("limit")
    await view.changing().limits.resume(name)
    return await view.done(Done(f"{name} goes on."))


async def ask_reset(view: View) -> Response:
    limit = await _limit(view)
    back = ON_OFF.get(limit.declared or "", limit.declared) or "its default"
    return await view.dialog(
        Dialog(
            f"Reset {limit.name}?",
            f"It is {in_force(limit)} now and goes back to {back}.",
            "Reset it",
            f"/limits/{segment(limit.name)}/reset",
            reasoned(
                view.cli("limits reset", limit.name),
                view.curl("POST", f"/limits/{segment(limit.name)}/reset"),
            ),
            danger=True,
            fields=(REASON,),
            hidden={"version": limit.version},
        )
    )


async def reset_limit(view: View) -> Response:
    name = view.path("limit")
    await view.changing().limits.reset(name)
    return await view.done(Done(f"{name} is back to what was declared."))


async def ask_new_tag(view: View) -> Response:
    return await view.dialog(
        Dialog(
            "Limit runs by a tag",
            "How many runs with a tag execute at once: tenant=acme bounds one value, tenant=* each for itself.",
            "Set",
            "/limits/-/tag",
            lambda given: _tag_commands(view, given["rule"], given),
            fields=(
                FormField("rule", "Tag", value="tenant=*", required=True),
                FormField("limit", "Runs at once", "number", "2", required=True),
                REASON,
            ),
        )
    )


async def new_tag(view: View) -> Response:
    await _set_tag(view, view.sent("rule"))
    return await view.done(Done(f"Runs with {view.sent('rule')}: {view.sent('limit')} at once."))


ROUTES = (
    UiRoute("/limits", show_limits),
    UiRoute("/limits/-/tag", ask_new_tag, scope="operate"),
    UiRoute("/limits/-/tag", new_tag, "POST", "operate"),
    UiRoute("/limits/{limit}/set", ask_set, scope="operate"),
    UiRoute("/limits/{limit}/set", set_limit, "POST", "operate"),
    UiRoute("/limits/{limit}/pause", ask_pause, scope="operate"),
    UiRoute("/limits/{limit}/pause", pause_limit, "POST", "operate"),
    UiRoute("/limits/{limit}/resume", ask_pause, scope="operate"),
    UiRoute("/limits/{limit}/resume", resume_limit, "POST", "operate"),
    UiRoute("/limits/{limit}/reset", ask_reset, scope="operate"),
    UiRoute("/limits/{limit}/reset", reset_limit, "POST", "operate"),
)
