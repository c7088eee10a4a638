"""One Django site for all tests of a process: settings can be made once."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

BACKEND = "locktender.integrations.django.LocktenderBackend"


def configured() -> None:
    """Again: nothing."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={"default": {}}, USE_TZ=True, TASKS=tasks_of())
        django.setup()


def tasks_of(**options: Any) -> dict[str, Any]:
    """The setting TASKS."""
    return {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": options}}


def use_database(url: str) -> None:
    """The site's database is that of `url`."""
    from django.db import connections

    parts = urlsplit(url)
    connections.settings["default"].update(
        {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path[1:],
            "USER": parts.username,
            "PASSWORD": parts.password or "",
            "HOST": parts.hostname or parse_qs(parts.query)["host"][0],
            "PORT": parts.port or "",
        }
    )
    if hasattr(connections._connections, "default"):
        connections["default"].close()
        del connections["default"]
