"""Templates are compiled when the server starts: nobody's first visit of a page waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.server_harness import process, served, until

from locktender.server.ui.pages import templates


@pytest.mark.parametrize("api", [True, False])
async def test_a_server_with_pages_compiles_all_templates(tmp_path: Path, api: bool):
    templates.cache_clear()

    def compiled() -> set[str]:
        cache = templates().cache
        assert cache is not None
        return {name for _, name in cache}

    async with (
        process(tmp_path / "a.db", lead=True, work=False) as (core, _),
        served(core, api=api),
    ):
        if api:
            every = set(templates().list_templates())
            await until(lambda: compiled() >= every, "every template is compiled")
    if not api:
        assert templates.cache_info().currsize == 0
