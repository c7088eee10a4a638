"""How values read on a page: times, durations, numbers, gates. The words of `why` are `why`'s own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from locktender.base.durations import spoken
from locktender.base.graph import TRACE
from locktender.base.names import without_controls
from locktender.client.views import Requested
from locktender.kernel.reasons import Reason
from locktender.server.api.principal import NOBODY_NAMED

SHORT_ID = 12
"""Characters of a run's id that are shown."""
FAMILIES: dict[str, tuple[str, str]] = {
    "runs": ("the run queue", "runs"),
    "tag": ("tag limits", "tag"),
    "pool": ("pools", "pool reserved"),
    "rate": ("rates", "rate throttle"),
    "worker": ("workers", "worker offer leader lost"),
    "window": ("the run's own window", "window run sequential parallel"),
    "time": ("time", "time clock back-off sleep until"),
    "event": ("events", "event"),
    "key": ("keys", "key"),
    "paused": ("pauses", "paused pause held"),
}
"""Family → what it is called, and the kinds of gates in it. Each has a colour and a pattern in app.css."""
_FAMILY_OF = {kind: family for family, (_, kinds) in FAMILIES.items() for kind in kinds.split()}


def gate_family(gate: str) -> str:
    """`pool:db` → pool; `other` where the gate is unknown."""
    kind = gate.partition(":")[0].partition(" ")[0]
    return _FAMILY_OF.get(kind) or _FAMILY_OF.get(kind.partition("-")[0], "other")


GATE_TEXTS = {
    "runs": "the run queue",
    "tag": "tag {}",
    "pool": "pool {}",
    "reserved": "slots kept in {}",
    "rate": "rate of {}",
    "throttle": "throttle {}",
    "paused": "paused {}",
    "pause": "a pause",
    "window": "window of {}",
    "run": "parallel steps of the run",
    "event": "event {}",
    "worker": "a free worker",
    "offer": "an unanswered offer",
    "leader": "no leader",
    "key": "another run of its key",
    "time": "a time",
}
"""Kind of a gate → what it is called, `{}` for its name; the run queue as `why` calls it."""


def gate_text(gate: str) -> str:
    """`tag:tenant=*acme` → tag tenant=acme."""
    kind, _, name = gate.partition(":")
    return GATE_TEXTS.get(kind, gate).format(name.replace("=*", "=")).strip()


def duration(value: timedelta | float | None) -> str:
    """`1.3s`, `4m 12s`; seconds where it is a number."""
    if value is None:
        return "–"
    passed = value if isinstance(value, timedelta) else timedelta(seconds=value)
    return spoken(max(0, passed // timedelta(microseconds=1)))


def duration_us(value: int | None) -> str:
    return "–" if value is None else spoken(max(0, value))


def ago(at: datetime, now: datetime) -> str:
    """As app.js goes on to show it."""
    passed = now - at
    if abs(passed) < timedelta(seconds=1):
        return "just now"
    whole = timedelta(seconds=abs(passed) // timedelta(seconds=1))
    return f"in {duration(whole)}" if passed < timedelta(0) else f"{duration(whole)} ago"


def about(us: int) -> str:
    """An estimate, not more exact than it is: `~40s`, `~3m`."""
    seconds = us / 1_000_000
    if seconds < 1:
        return "< 1s"
    if seconds < 90:
        return f"~{round(seconds)}s"
    if seconds < 90 * 60:
        return f"~{round(seconds / 60)}m"
    return f"~{seconds / 3600:.1f}h" if seconds < 48 * 3600 else f"~{round(seconds / 86400)}d"


def iso(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def count(value: float | None) -> str:
    """With commas; -1 and None mean no bound."""
    if value is None or value == -1:
        return "∞"
    return f"{value:,}"


def brief(value: float) -> str:
    """1234567 → 1.2M, for where there is little room."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = 1e3 if unit == "k" else limit
            return f"{value / scale:.3g}{unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def share(part: float, whole: float) -> int:
    """Percent, 0 to 100."""
    return 0 if whole <= 0 else max(0, min(100, round(100 * part / whole)))


def clock(at: datetime) -> str:
    """`14:03:07.250`, UTC."""
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def size(value: int) -> str:
    """`812 B`, `4.1 kB`."""
    for limit, unit in ((1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value} B"


def plural(number: int, word: str, several: str = "") -> str:
    return f"{number:,} {word if number == 1 else several or word + 's'}"


def requested(what: str, asked: Requested) -> str:
    """`requested("Cancelling {}", asked)`: Cancelling 3 runs; 1 run had ended already."""
    parts = [what.format(plural(len(asked.ids), "run"))]
    if asked.started:
        parts.append(f"{plural(len(asked.started), 'run')} had started")
    if asked.over:
        parts.append(f"{plural(len(asked.over), 'run')} had ended already")
    if asked.ids and not asked.leader:
        parts.append("no engine runs now: it is done when one starts")
    return "; ".join(parts) + "."


def times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def who(name: str) -> str:
    """Who did it, by what the API calls them."""
    return "no login" if name == NOBODY_NAMED else name


def short(run: str) -> str:
    return run[:SHORT_ID]


def flow_name(flow: str) -> str:
    """Without the module that it is from."""
    return flow.rpartition(":")[2] or flow


def step_name(step: str) -> str:
    """As people read it: the first task of a run submitted by name is not a step of its flow."""
    return "trace the flow" if step == TRACE else step


def clean(text: object) -> str:
    """Text of a user's, without control characters and marks that turn the direction of what follows."""
    shown = str(text)
    return shown if shown.isprintable() else without_controls(shown)


def address(path: str, /, **query: object) -> str:
    """`address("/runs", status="failed")`; what is None or empty is left out."""
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return f"{path}?{urlencode(given, doseq=True, safe=',=:*')}" if given else path


def segment(text: str) -> str:
    """One part of a path."""
    return quote(text, safe="")


def linked(text: str, reasons: Iterable[Reason]) -> Markup:
    """With links to the runs and tasks that hold what these reasons name. Escaped."""
    known: dict[str, str] = {}
    for holder in (holder for reason in reasons for holder in reason.holders):
        known[holder.run] = f"/runs/{segment(holder.run)}"
        if holder.task:
            known[str(holder.task)] = f"/runs/{segment(holder.run)}/tasks/{holder.task}"

    def link(found: re.Match[str]) -> str:
        name = found[0]
        return f'<a class="id" href="{known[name]}">{name}</a>' if name in known else name

    return Markup(re.sub(r"\w+", link, str(escape(clean(text)))))  # noqa: S704 escaped above


def tag_filter(text: str) -> str:
    """`tenant=a,b` → `tenant=a\\,b`: one pair of the filter by tags."""
    return text.replace("\\", "\\\\").replace(",", "\\,")


def tag_text(tags: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in tags.items())


FILTERS: dict[str, Callable[..., Any]] = {
    "duration": duration,
    "duration_us": duration_us,
    "about": about,
    "ago": ago,
    "iso": iso,
    "clock": clock,
    "size": size,
    "count": count,
    "brief": brief,
    "short": short,
    "who": who,
    "flow_name": flow_name,
    "clean": clean,
    "step_name": step_name,
    "segment": segment,
    "tag_text": tag_text,
    "tag_filter": tag_filter,
    "linked": linked,
    "gate_family": gate_family,
    "gate_text": gate_text,
}
GLOBALS: dict[str, Any] = {
    "address": address,
    "plural": plural,
    "times": times,
    "share": share,
    "FAMILIES": FAMILIES,
}
