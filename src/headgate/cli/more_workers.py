"""More workers for `dev` and `server`: processes that come when nobody can take what waits, and go by themselves.

They run the files that are named. When those are reloaded, workers with the old
code are let go: they finish what they have, and what still waits is done by new ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.base.config import Settings
from headgate.flows.registry import registry
from headgate.provision.local import LocalProvisioner, worker_command
from headgate.stages.overflow import Overflow


class MoreWorkers:
    def __init__(
        self,
        settings: Settings,
        sources: Sequence[str],
        given: Sequence[str],
        grace_us: int,
        *,
        same_code: bool,
    ) -> None:
        """`sources` as `headgate worker` takes them; `given`: settings by flags, as they were written.

        `same_code`: those sources are loaded in this process too.
        """
        sets = dict(each.split("=", 1) for each in given)
        sets["grace"] = f"{grace_us}us"
        self._provisioner = LocalProvisioner(
            worker_command(sources, settings, sets),
            settings,
            steps=_steps if same_code else None,
            grace_us=grace_us,
        )
        self.overflow: Overflow = Overflow(self._provisioner, settings)

    async def renew(self) -> None:
        """The code has changed: whoever runs the old one drains."""
        for each in await self._provisioner.list():
            if each.state in ("starting", "running"):
                await self._provisioner.release(each.name)

    async def close(self) -> None:
        await self.overflow.close()


def _steps() -> dict[str, str]:
    return {name: step.signature for name, step in dict(registry.steps).items()}
