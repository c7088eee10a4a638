"""`config show`: what this would run with."""

from __future__ import annotations

from typing import Any

import typer

from locktender.cli.context import Context, command, group
from locktender.cli.output import escape


def register(app: typer.Typer) -> None:
    config = group(app, "config", "Settings and where they come from.")
    command(config, "show")(show)


def show(shell: Context) -> None:
    """Every setting, its value and its source."""
    from locktender.base.settings_values import KEYS
    from locktender.cli.tables import table

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
    from locktender.base.durations import spoken

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
