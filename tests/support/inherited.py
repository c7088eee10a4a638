"""What a test run inherits from the shell that starts it, made the same everywhere.

A background shell ignores SIGINT, a service has another umask, a developer has
LOCKTENDER_URL, a proxy or PGHOST set, or a settings file above the temporary folder.
None of it may change a verdict. Processes that tests start inherit what is set here.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from locktender.base import settings_files
from locktender.base.errors import InvalidSettings

KEPT = {
    "LOCKTENDER_TEST_POSTGRES",  # names the server that tests of PostgreSQL use
    "LOCKTENDER_TEST_APISERVER",  # and the programs of a real API server
    "LOCKTENDER_TEST_ETCD",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPYCACHEPREFIX",
}
PREFIXES = (
    *("LOCKTENDER_", "PYTHON", "PG", "OTEL_", "LC_"),
    *("AWS_", "GOOGLE_", "KUBERNETES_SERVICE_", "RAY_", "SLURM_"),
)
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
NAMES = {
    "LANGUAGE",
    *("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PY_COLORS", "COLORTERM"),
    *("COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "CI", "GITHUB_ACTIONS", "SHELL"),
    *("KUBECONFIG", "STORAGE_EMULATOR_HOST", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
    *("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV"),
    *("DJANGO_SETTINGS_MODULE", "FORWARDED_ALLOW_IPS", "WEB_CONCURRENCY"),
}
OF_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Ignored by every Python process."""


def reset() -> None:
    """Signals, variables, umask, locale, terminal and time zone as the tests expect them."""
    _signals()
    for name in list(os.environ):
        if name not in KEPT and (
            name.startswith(PREFIXES) or name in NAMES or name.lower() in PROXIES
        ):
            del os.environ[name]
    os.environ |= {"TZ": "UTC", "LANG": "C.UTF-8", "TERM": "xterm"}
    time.tzset()
    os.umask(0o022)


def settings_above(folder: Path) -> str | None:
    """Why no tests can run in this temporary folder; None: they can.

    A command takes the nearest settings file upwards of where it is run.
    """
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    try:
        found = settings_files.nearest(there)
    except InvalidSettings as error:
        return f"tests cannot run in the temporary folder {folder}: {error}"
    if found is None:
        return None
    return (
        f"the settings in {found.path} would apply to tests in the temporary folder {folder}."
        " Remove them, or set TMPDIR or --basetemp to another folder."
    )


def _signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - set(OF_PYTHON):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    # Python has no handler of its own where SIGINT was ignored when it began.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
