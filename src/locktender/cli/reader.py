"""Looking into a store past the client's verbs, from sync code: one loop and one connection of its own."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from locktender.base.config import Settings
from locktender.client.bridge import Bridge
from locktender.client.core import Core
from locktender.store.protocol import Store

T = TypeVar("T")


class StoreReader:
    def __init__(self, settings: Settings) -> None:
        self._bridge = Bridge()
        try:
            self.core: Core = self._bridge.call(Core.open(settings, engine=False))
        except BaseException:
            self._bridge.stop()
            raise

    @property
    def store(self) -> Store:
        return self.core.store

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._bridge.call(work)

    def close(self) -> None:
        try:
            self._bridge.call(self.core.close())
        finally:
            self._bridge.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
