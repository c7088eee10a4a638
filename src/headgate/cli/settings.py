"""`config show` and `db status`: what this would run with, and on what."""

from __future__ import annotations

from typing import Any

import typer
from rich.markup import escape

from headgate.cli.shell import Shell, command, group


def register(app: typer.Typer) -> None:
    config = group(app, "config", "Settings and where they come from.")
    command(config, "show")(show)
    db = group(app, "db", "The store itself.")
    command(db, "status")(status)


def show(shell: Shell) -> None:
    """Every setting, its value and its source."""
    from headgate.base.settings_values import KEYS
    from headgate.cli.tables import table

    settings = shell.settings()
    found = {
        name: {"value": getattr(settings, key.field), "source": _source(settings.sources, name)}
        for name, key in sorted(KEYS.items())
    }
    if shell.json:
        shell.data(found)
        return
    rows = [
        [name, escape(_spoken(KEYS[name].field, each["value"])), escape(each["source"])]
        for name, each in found.items()
    ]
    shell.out.print(table("setting", "value~", "from~", rows=rows))


def _source(sources: dict[str, str], name: str) -> str:
    """Tables are merged entry by entry: each may come from elsewhere."""
    entries = {where for key, where in sources.items() if key == name or key.startswith(f"{name}.")}
    shown = {"--url" if where == "override url" else where for where in entries}
    return ", ".join(sorted(shown)) or "default"


def _spoken(field: str, value: Any) -> str:
    from headgate.base.durations import spoken

    if value is None:
        return "off"
    if field.endswith("_us"):
        return "off" if value == 0 else spoken(value)
    if value in ({}, ()):
        return "none"
    if isinstance(value, dict | tuple):
        import msgspec

        return msgspec.json.encode(value).decode()
    return str(value)


def status(shell: Shell) -> int:
    """Where the store is, what is in it, and whether its counters agree with its rows."""
    from pathlib import Path

    with shell.read() as reading:
        path = Path(reading.core.settings.url)
        found: dict[str, Any] = {"store": str(path), "size_bytes": path.stat().st_size}
        found |= reading.call(_status(reading.core))
    if shell.json:
        shell.data(found)
    else:
        for key, value in found.items():
            shell.say(f"{key.replace('_', ' '):>16}  {escape(_plain(value))}")
    return 0 if found["counters_agree"] else 1


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if value is None:
        return "nobody"
    return f"{value:,}" if isinstance(value, int) else str(value)


async def _status(core: Any) -> dict[str, Any]:
    from headgate.store.sqlite.opening import MIGRATIONS

    store = core.store
    counts = await store.counts()
    snapshot = await store.load()
    active = {name: number - counts.closed.get(name, 0) for name, number in counts.admitted.items()}
    return {
        "schema": len(MIGRATIONS),
        "queued": counts.queued,
        "executing": counts.executing,
        "history_rows": snapshot.seq,
        "workers": len(snapshot.workers),
        "leader": await store.leader(),
        "counters_agree": all(
            active.get(name, 0) == number for name, number in counts.active.items()
        ),
    }
