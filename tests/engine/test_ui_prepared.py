"""Templates and assets are prepared when the server starts: nobody's first visit of a page waits for it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.support.server_harness import process, served, until

from locktender.server.ui.assets import assets
from locktender.server.ui.pages import templates


async def _no_server_prepares() -> None:
    """Neither this test's, nor one of a test before that has ended."""

    def prepares() -> bool:
        return any(each.name == "locktender-pages" for each in threading.enumerate())

    await until(lambda: not prepares(), "pages are prepared")


@pytest.mark.parametrize("api", [True, False])
async def test_a_server_with_pages_prepares_them(tmp_path: Path, api: bool):
    await _no_server_prepares()
    templates.cache_clear()
    assets.cache_clear()
    async with (
        process(tmp_path / "a.db", lead=True, work=False) as (core, _),
        served(core, api=api),
    ):
        await _no_server_prepares()
    assert templates.cache_info().currsize == assets.cache_info().currsize == api
    if api:
        compiled = templates().cache
        assert compiled is not None
        assert {name for _, name in compiled} == set(templates().list_templates())
