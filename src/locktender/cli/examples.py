"""An example of each command whose own text has none: shown at the end of its `--help`."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, str]] = {
    "run": "locktender run flows.py:build --arg n=3 --pool db=2",
    "submit": "locktender submit flows.py:build --arg n=3 --tag tenant=acme --priority 5",
    "dev": "locktender dev flows.py",
    "demo": "locktender demo",
    "server": "locktender server --port 8080 --url postgresql://db/app",
    "worker": "locktender worker flows.py --label gpu=a100 --url postgresql://db/app",
    "waiting": "locktender waiting --watch",
    "why": "locktender why 06gy8rm99095",
    "audit": "locktender audit --json",
    "completion": "source <(locktender completion bash)",
    "runs list": "locktender runs list --state failed --tag tenant=acme -n 50",
    "runs show": "locktender runs show 06gy8rm99095 --tasks --watch",
    "queue list": "locktender queue list -n 100",
    "queue why": "locktender queue why 06gy8rm99095",
    "schedules list": "locktender schedules list",
    "schedules show": "locktender schedules show nightly",
    "schedules set": "locktender schedules set nightly build --cron '0 3 * * 1-5' --tz Europe/Berlin",
    "schedules run-now": "locktender schedules run-now nightly",
    "schedules history": "locktender schedules history nightly",
    "pools list": "locktender pools list --watch",
    "pools info": "locktender pools info db",
    "pools reset": "locktender pools reset db",
    "pools pause": "locktender pools pause db",
    "pools resume": "locktender pools resume db",
    "pools delete": "locktender pools delete db",
    "limits list": "locktender limits list",
    "limits reset": "locktender limits reset tag tenant=acme",
    "limits pause": "locktender limits pause tag tenant=acme",
    "limits resume": "locktender limits resume tag tenant=acme",
    "limits history": "locktender limits history -n 50",
    "tokens create": "locktender tokens create ci --scope submit --tag tenant=acme --expires 30d",
    "tokens list": "locktender tokens list",
    "tokens revoke": "locktender tokens revoke ci",
    "cache list": "locktender cache list --step fetch",
    "cache show": "locktender cache show 4be1a0",
    "cache clear": "locktender cache clear --step fetch",
    "workers list": "locktender workers list --watch",
    "workers show": "locktender workers show build-7-4231",
    "workers drain": "locktender workers drain build-7-4231",
    "workers undrain": "locktender workers undrain build-7-4231",
    "db status": "locktender db status --json",
    "db migrate": "locktender db migrate --check",
    "db prune": "locktender db prune --older-than 30d --dry-run",
    "db copy": "locktender db copy .locktender/locktender.db postgresql://db/app",
    "db backup": "locktender db backup backup.db",
    "db grant-worker": "locktender db grant-worker lt_worker",
    "db grant-submit": "locktender db grant-submit lt_app --print",
    "db checkpoint": "locktender db checkpoint",
    "config show": "locktender config show",
}
WATCHED: Final = frozenset({"list", "show", "info", "status", "waiting"})
"""Verbs that read a store: with `--watch` they answer again and again."""


def example_of(path: str, own: str | None) -> str | None:
    """What stands at the end of the help of the command `path`; `own`: its text, which may have one."""
    if f"locktender {path}" in (own or ""):
        return None
    found = EXAMPLES.get(path)
    return None if found is None else f"Example: {found}".replace("[", "\\[")
