"""Limits as rows: one rule per (kind, name), declared by code and set live by operators; changes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast, get_args

import msgspec

from locktender.base.durations import MAX_MICROSECONDS
from locktender.base.errors import InvalidInput, LimitChanged
from locktender.base.events import Change
from locktender.base.limits import (
    Fair,
    LimitKind,
    Limits,
    PauseRule,
    Placement,
    PoolRule,
    Rate,
    TagRule,
    fair_rule,
    pool_name,
    pool_rule,
    tag_rule,
)
from locktender.base.model import LimitRow
from locktender.base.names import MAX_NUMBER, UNLIMITED, age_boost, count, did_you_mean, limit
from locktender.store.admission import capped
from locktender.store.protocol import SetLimit

Rule = TypeVar("Rule")

KINDS: tuple[str, ...] = get_args(LimitKind)


class RunsRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many runs execute at once, and whether new ones start at all."""

    limit: int = Limits().max_concurrent_runs
    paused: bool = False


class ActiveRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The admission ceiling."""

    limit: int


class Knob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: int | bool | str


_RULES: dict[str, type[msgspec.Struct]] = {
    "runs": RunsRule,
    "active": ActiveRule,
    "tag": TagRule,
    "pool": PoolRule,
    "fair": Fair,
    "engine": Knob,
    "flow": PauseRule,
    "run": PauseRule,
}

_KNOBS: dict[str, type] = {
    "age_boost_us": int,
    "max_bypass": int,
    "max_starts_per_cycle": int,
    "max_waiting": int,
    "placement": str,
    "strict_pools": bool,
    "topic_retention_us": int,
}


def compose(rows: Iterable[LimitRow]) -> Limits:
    """What is in force: of every rule the live setting, else the declared one."""
    values: dict[str, Any] = {}
    tags: list[TagRule] = []
    pools: dict[str, PoolRule] = {}
    flows: dict[str, PauseRule] = {}
    runs: dict[int, PauseRule] = {}
    for row in sorted(rows, key=lambda row: (row.kind, row.name)):
        rule = row.effective
        if rule is None:
            continue
        match parse(row.kind, row.name, rule):
            case RunsRule(limit=most, paused=paused):
                values |= {"max_concurrent_runs": most, "runs_paused": paused}
            case ActiveRule(limit=most):
                values["max_active"] = most
            case TagRule() as tag:
                tags.append(tag)
            case PoolRule() as pool:
                pools[row.name] = pool
            case Fair() as fair:
                # One fair key at a time: the first by name, in every process alike.
                values.setdefault("fair", fair)
            case Knob(value=value):
                values[row.name] = value
            case PauseRule(run=0) as pause:
                flows[row.name] = pause
            case PauseRule() as pause:
                runs[pause.run] = pause
    return Limits(tags=tuple(tags), pools=pools, paused_flows=flows, paused_runs=runs, **values)


def pause_seq(row: LimitRow) -> int:
    """The number of the run that a rule of kind `run` pauses; 0 where that cannot be read."""
    rule = row.effective
    return 0 if rule is None else cast("PauseRule", parse(row.kind, row.name, rule)).run


def readable(rows: Iterable[Sequence[Any]]) -> list[LimitRow]:
    """Stored rules. Never fails: where one cannot be read, something safe is in force in its place.

    A pool, a tag or a flow stays shut: its limit is not known. Any other is left out, as if it was never set.
    """
    found: list[LimitRow] = []
    for *key, declared, live in rows:
        kind, name = (each if type(each) is str else repr(each) for each in key)
        both = {"declared": declared, "live": live}
        faults = {
            which: fault for which, rule in both.items() if (fault := _fault(kind, name, rule))
        }
        if not faults:
            found.append(LimitRow(kind, name, declared, live))
            continue
        shut = _shut(kind, name)
        if _fault(kind, name, shut):  # nothing can have such a name
            shut = None
        both |= dict.fromkeys(faults, shut)
        which, fault = next(iter(faults.items()))
        rule = f"the {which} rule of {kind} {name}".strip()
        told = f"{rule} cannot be read, so {_instead(faults, both)}: {fault}"
        found.append(LimitRow(kind, name, both["declared"], both["live"], told))
    return found


def _instead(faults: Collection[str], rules: Mapping[str, bytes | None]) -> str:
    """What is in force where these rules cannot be read."""
    if "live" not in faults and rules["live"] is not None:
        return "the live one stays in force"
    if rules["live"] is None and rules["declared"] is not None and "declared" not in faults:
        return "the declared one is in force"
    return "none is in force" if rules["declared"] is rules["live"] is None else "it is shut"


def _fault(kind: str, name: str, rule: object) -> str:
    if rule is None:
        return ""
    try:
        if type(rule) is not bytes:
            return f"{rule!r:.80}"
        parse(kind, name, rule)
    except InvalidInput as error:
        return str(error)
    return ""


def _shut(kind: str, name: str) -> bytes | None:
    """A rule by which nothing starts; None where there is none of this kind."""
    if kind == "pool":
        return msgspec.json.encode(PoolRule(limit=1, paused=True))
    if kind == "tag":
        key, equals, value = name.partition("=")
        rule = TagRule(key, value if equals and value != "*" else None, value == "*", 1)
        return msgspec.json.encode(msgspec.structs.replace(rule, paused=True))
    if kind == "flow":
        return msgspec.json.encode(PauseRule())
    return None


def parse(
    kind: str, name: str, rule: bytes
) -> RunsRule | ActiveRule | TagRule | PoolRule | Fair | Knob | PauseRule:
    """The rule as a checked value; `InvalidInput` says which and why."""
    match kind:
        case "runs":
            _unnamed(kind, name)
            runs = _decode(rule, RunsRule, kind)
            limit(runs.limit, "max_concurrent_runs")
            return runs
        case "active":
            _unnamed(kind, name)
            active = _decode(rule, ActiveRule, kind)
            limit(active.limit, "max_active")
            return active
        case "tag":
            return _tag(name, _decode(rule, TagRule, f"tag {name}"))
        case "pool":
            pool_name(name)
            return _pool(name, _decode(rule, PoolRule, f"pool {name}"))
        case "fair":
            fair = _decode(rule, Fair, f"fair {name}")
            fair_rule(fair.key, fair.weights)
            _same_name("fair", name, fair.key)
            return fair
        case "engine":
            return _knob(name, _decode(rule, Knob, name))
        case "flow" | "run":
            return _pause(kind, name, _decode(rule, PauseRule, f"{kind} {name}"))
        case _:
            raise _no_kind(kind)


def _no_kind(kind: str) -> InvalidInput:
    return InvalidInput(
        f"{kind!r} is not a kind of limit.",
        field="kind",
        got=kind,
        hint=did_you_mean(kind, KINDS),
    )


def check_patch(kind: str, name: str, patch: bytes) -> dict[str, Any]:
    """The fields of a patch; `InvalidInput` where no rule of this kind has them."""
    known = _RULES.get(kind)
    if known is None:
        raise _no_kind(kind)
    fields = cast("dict[str, Any]", _decode(patch, dict, f"{kind} {name}".strip()))
    accepted = {each.name for each in msgspec.structs.fields(known)}
    for key, value in fields.items():
        if key not in accepted:
            raise InvalidInput(
                f"a {kind} rule has no {key!r}.",
                field=key,
                got=value,
                hint=did_you_mean(key, accepted),
            )
    return fields


def patched(kind: str, name: str, base: bytes | None, patch: bytes) -> bytes:
    """The rule `base` (None: it was never set) with the fields of `patch` in it, checked as a whole."""
    fields = check_patch(kind, name, patch)
    rule: dict[str, Any] = {}
    if base is not None:
        rule = cast("dict[str, Any]", _decode(base, dict, f"{kind} {name}".strip()))
    merged = _merged(rule, fields)
    rate: Any = merged.get("rate")
    if isinstance(rate, dict) and "burst" in rate and "count" not in rate:
        pool_rule(burst=cast("dict[str, Any]", rate)["burst"])  # says that a burst needs a rate
    # Written as every rule is, so that the same rule has the same bytes.
    return msgspec.json.encode(parse(kind, name, msgspec.json.encode(merged)))


def _merged(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A JSON merge patch: objects field by field, null takes a field away."""
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            below = merged.get(key)
            inner = cast("dict[str, Any]", below) if isinstance(below, dict) else {}
            merged[key] = _merged(inner, cast("dict[str, Any]", value))
        else:
            merged[key] = value
    return merged


def _decode(rule: bytes, type_: type[Rule], field: str) -> Rule:
    try:
        return msgspec.json.decode(rule, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "A rule is a JSON object of the fields of its kind."
        raise InvalidInput(
            f"the rule is not valid: {error}.", field=field, got=rule, hint=hint
        ) from error


def _unnamed(kind: str, name: str) -> None:
    if name:
        raise InvalidInput(f"the limit {kind!r} has no name.", field="name", got=name)


def _same_name(kind: str, name: str, own: str) -> None:
    if name != own:
        raise InvalidInput(
            f"the {kind} rule {own!r} was stored under {name!r}.", field="name", got=name
        )


def _tag(name: str, rule: TagRule) -> TagRule:
    tag_rule(
        rule.key,
        rule.value,
        limit_=rule.limit,
        per_value=rule.per_value,
        max_active=rule.max_active,
        counts_while_waiting=rule.counts_while_waiting,
    )
    _same_name("tag", name, rule.name)
    return rule


def _pool(name: str, rule: PoolRule) -> PoolRule:
    limit(rule.limit, f"pool {name}", zero_hint="To hold a pool shut, use: pools pause NAME.")
    if rule.lease_us is not None:
        count(rule.lease_us, f"pool {name}.lease", maximum=MAX_MICROSECONDS)
    if rule.rate is not None:
        count(rule.rate.count, f"pool {name}.rate")
        count(rule.rate.per_us, f"pool {name}.rate", maximum=MAX_MICROSECONDS)
        count(rule.rate.burst, f"pool {name}.burst")
    return rule


def _pause(kind: str, name: str, rule: PauseRule) -> PauseRule:
    if not name or (kind == "run") != (rule.run > 0):
        raise InvalidInput(
            f"a pause of a {kind} names it, and only that of a run has its number.",
            field="name",
            got=name,
        )
    return rule


def _knob(name: str, knob: Knob) -> Knob:
    wanted = _KNOBS.get(name)
    if wanted is None:
        raise InvalidInput(
            f"{name!r} is not a setting of the engine.",
            field="name",
            got=name,
            hint=did_you_mean(name, _KNOBS),
        )
    value = knob.value
    if name == "max_waiting":
        limit(value, name, zero_hint="Use -1 for unlimited.")
    elif wanted is int:
        least = 1 if name in ("max_starts_per_cycle", "topic_retention_us") else 0
        most = MAX_MICROSECONDS if name == "topic_retention_us" else MAX_NUMBER
        count(value, name, minimum=least, maximum=most)
    elif not isinstance(value, wanted):
        raise InvalidInput(f"{name} must be {wanted.__name__}.", field=name, got=value)
    elif name == "placement" and value not in get_args(Placement):
        raise InvalidInput(
            f"{name} must be one of {', '.join(get_args(Placement))}.", field=name, got=value
        )
    return knob


class Changed(msgspec.Struct):
    """What a list of changes comes to."""

    before: Limits
    after: Limits
    rows: list[LimitRow] = msgspec.field(default_factory=list[LimitRow])
    """As they are now; one with neither a declared nor a live rule is gone."""
    history: list[tuple[str, str, str, bytes | None, bytes | None, str]] = msgspec.field(
        default_factory=list[tuple[str, str, str, bytes | None, bytes | None, str]]
    )
    """(who, kind, name, before, after, reason)"""
    asked: list[Change] = msgspec.field(default_factory=list[Change])

    @property
    def recount(self) -> bool:
        """Whether the ceilings that runs are counted under are others now."""
        return {rule.name for rule in capped(self.before)} != {
            rule.name for rule in capped(self.after)
        }


def check(changes: Sequence[SetLimit]) -> None:
    """Raises `InvalidInput` for the first rule that can never be right."""
    for change in changes:
        if change.rule is not None:
            rule = parse(change.kind, change.name, change.rule)
            # Here and not in `parse`: a store that has a larger one must still open.
            if change.name == "age_boost_us" and isinstance(rule, Knob):
                age_boost(rule.value)
            if isinstance(rule, PoolRule) and rule.rate is not None:
                _check_burst(change.name, rule.rate)
        if change.patch is not None:
            check_patch(change.kind, change.name, change.patch)


def _check_burst(pool: str, rate: Rate) -> None:
    if rate.burst * rate.per_us // rate.count > MAX_MICROSECONDS:
        raise InvalidInput(
            f"the burst of pool {pool!r} would take more than 100 years to make up for.",
            field="burst",
            got=rate.burst,
            hint="Use a smaller burst or a higher rate.",
        )


def _check_expected(change: SetLimit, row: LimitRow, limits: Limits) -> None:
    """Two operators who have seen the same limit do not both change it."""
    rule: Any = {} if row.effective is None else msgspec.json.decode(row.effective)
    found = rule.get("limit", UNLIMITED)
    if change.kind == "pool":  # one key may have the limit of `api[*]`
        found = (limits.pool(change.name) or PoolRule()).limit
    elif change.kind in {"runs", "active"}:
        found = limits.max_concurrent_runs if change.kind == "runs" else limits.max_active
    if found != change.expected:
        name = f"{change.kind} {change.name}".strip()
        raise LimitChanged(
            f"the limit of {name} is {found}, not {change.expected}: it was changed meanwhile.",
            field="expected",
            got=change.expected,
            hint="locktender limits history shows who changed it; set it again if that is still meant.",
        )


def judge_limit(changes: Sequence[SetLimit], rows: Sequence[LimitRow]) -> Changed:
    """Code declares the same limits at every start: what changes nothing leaves no trace."""
    known = {(row.kind, row.name): row for row in rows}
    before = compose(rows)
    changed = Changed(before, before)
    touched: dict[tuple[str, str], LimitRow] = {}
    for change in changes:
        (
            known.get((change.kind, change.name)) or LimitRow(change.kind, change.name, None, None)
        ).check(change.version)
    for change in changes:
        place = change.kind, change.name
        old = known.get(place) or LimitRow(*place, None, None)
        if change.expected is not None:
            _check_expected(change, old, compose(known.values()))
        rule = change.rule
        if change.patch is not None:
            # Applied to the rule in force now, not to the one the sender last saw: no change is lost.
            base = old.declared if change.declared else old.effective
            rule = patched(*place, base or rule, change.patch)
        new = LimitRow(
            *place,
            rule if change.declared else old.declared,
            old.live if change.declared else rule,
        )
        if (new.declared, new.live) == (old.declared, old.live):
            continue
        known[place] = touched[place] = new
        changed.history.append(
            (change.who, *place, old.effective, new.effective, change.reason),
        )
        effective = new.effective
        value = None if effective is None else msgspec.json.decode(effective)
        data = {"kind": change.kind, "name": change.name, "rule": value}
        changed.asked.append(Change("limit", 0, "", "asked", 0, data))
    changed.rows = [touched[place] for place in sorted(touched)]
    changed.after = compose(known.values())
    return changed
