"""What is taken for the path of a store, and what was meant as a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from locktender import InvalidInput, connect
from locktender.base import config
from locktender.base.settings_files import check_path
from locktender.store.open import place_for

SERVERS = (
    "localhost:5432/db",
    "localhost:5432",
    "me@db.example:5432/db",
    "me:secret@db.example/db",
    "me:secret@db.example",
    "postgresql:/localhost/db",
    "postgres:db",
    "postgres//me:secret@db.example/db",
)
UNUSABLE = (
    "postgresql://me:sec#ret@db.example/db",
    "postgresql://me:sec/ret@db.example/db",
    "postgresql://me:sec?ret@db.example/db",
    "postgresql://me:secret@db.example:99999/db",
    "postgresql://me:secret@db.example:abc/db",
    "postgresql://me:secret@db.example:5432,other:0/db",
)
PATHS = (
    "locktender.db",
    ".locktender/locktender.db",
    "./localhost:5432/db",
    "/data/a:1/locktender.db",
    "C:\\data\\locktender.db",
    "C:/data/locktender.db",
    "me@home/locktender.db",
    "2026-01-01T12:00.db",
    "postgresql://me:secret@db.example:5432/db",
)


@pytest.mark.parametrize("url", SERVERS)
def test_a_server_without_its_scheme_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for open_ in (connect, place_for):
        with pytest.raises(InvalidInput, match="has no scheme") as caught:
            open_(url)
        assert "postgresql://" in str(caught.value.hint)
        assert "secret" not in str(caught.value.as_dict())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", UNUSABLE)
def test_an_unusable_url_is_refused_without_its_password(url: str):
    for open_ in (connect, place_for):
        with pytest.raises(InvalidInput) as caught:
            open_(url)
        told = str(caught.value) + str(caught.value.as_dict())
        assert caught.value.hint
        assert "sec" not in told
        assert "ret" not in told


@pytest.mark.parametrize("url", PATHS)
def test_a_path_is_a_path(url: str):
    check_path(url)


def test_a_file_of_settings_above_does_not_make_a_path_of_it(tmp_path: Path):
    (tmp_path / "locktender.toml").write_text('url = "localhost:5432/db"\n')
    below = tmp_path / "below"
    below.mkdir()
    with pytest.raises(InvalidInput, match="has no scheme"):
        config.load(below)
