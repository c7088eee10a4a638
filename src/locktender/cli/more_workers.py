"""Options of `server`, `dev` and `run` about workers that are started on overflow, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from locktender.cli.arguments import number

if TYPE_CHECKING:
    from locktender.base.config import Settings
    from locktender.cli.load_flow import Target
    from locktender.client.more_workers import MoreWorkers
    from locktender.client.provisioners import GivenProvisioner

MaxWorkers = Annotated[
    str | None,
    typer.Option(
        "--max-workers",
        metavar="N",
        help="Start up to N more workers when work overflows (else the setting max_workers).",
    ),
]
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY=VALUE",
        help="What workers that are started here have, e.g. gpu=a100. Repeatable.",
    ),
]
OwnProvisioner = Annotated[
    str | None,
    typer.Option(
        "--provisioner",
        metavar="MODULE:NAME",
        help="Who starts workers instead: a provisioner, or what makes one from the settings.",
    ),
]
_EXAMPLE = "locktender server --spawn flows.py --max-workers 3"


class Wanted(NamedTuple):
    """Who is to start workers."""

    sources: list[str]
    """As `locktender worker` takes them, for workers on this machine."""
    provisioner: GivenProvisioner | None = None

    def __bool__(self) -> bool:
        return bool(self.sources) or self.provisioner is not None


def given(max_workers: str | None, label: Sequence[str] | None) -> dict[str, Any]:
    """The options as settings."""
    from locktender.cli import arguments

    found: dict[str, Any] = {}
    if max_workers is not None:
        found["max_workers"] = number(max_workers)
    if label:
        found["worker_labels"] = arguments.labels(label)
    return found


def wanted(spawn: Sequence[str] | None, provisioner: str | None) -> Wanted:
    """What `--spawn` and `--provisioner` name, looked up before anything is started."""
    from locktender.base.errors import InvalidInput

    if spawn and provisioner is not None:
        raise InvalidInput(
            "--spawn starts workers on this machine, --provisioner starts them another way.",
            field="provisioner",
            got=provisioner,
            hint="Leave one of them out.",
        )
    if provisioner is not None:
        return Wanted([], load_provisioner(provisioner))
    return Wanted([word for text in spawn or () for word in source_words(text)])


def wanted_by_dev(target: Target, provisioner: str | None, settings: Settings) -> Wanted:
    """`dev` runs one file and has a worker of its own: without a maximum it starts no others."""
    from locktender.client.more_workers import check_idle_exit

    if provisioner is not None:
        check_maximum(settings, "--provisioner")
        return Wanted([], load_provisioner(provisioner))
    if not settings.max_workers:
        return Wanted([])
    check_idle_exit(settings)
    return Wanted([target.where] if target.is_file else ["--app", target.where])


def check_wanted(who: Wanted, settings: Settings) -> None:
    """Refuses a maximum without somebody to start workers, and the other way round."""
    from locktender.base.errors import InvalidInput
    from locktender.client.more_workers import check_idle_exit, given_by_argument

    if who:
        check_maximum(settings, "--spawn" if who.sources else "--provisioner")
        if who.sources:
            check_idle_exit(settings)
        return
    for key, option in (("max_workers", "--max-workers"), ("worker_labels", "--label")):
        if any(
            given_by_argument(settings, each)
            for each in settings.sources
            if each.partition(".")[0] == key
        ):
            raise InvalidInput(
                f"{option} is about workers that this server starts, and it starts none.",
                field=key,
                hint=f"Say with which steps: {_EXAMPLE}, or who does it: --provisioner MODULE:NAME.",
            )


def check_maximum(settings: Settings, option: str) -> None:
    """Refuses `option` where there may be no worker at all."""
    from locktender.client.more_workers import no_maximum

    if not settings.max_workers:
        raise no_maximum(option, "Say --max-workers 3")


def started(
    who: Wanted, settings: Settings, *, grace_us: int | None = None, same_code: bool = False
) -> MoreWorkers | None:
    """None where nobody is to start any. `same_code`: the sources are loaded in this process too."""
    from locktender.client.more_workers import MoreWorkers, local_workers, steps_here

    if who.provisioner is not None:
        return MoreWorkers(made_for(who.provisioner, settings), settings)
    if not who.sources:
        return None
    steps = steps_here if same_code else None
    return local_workers(settings, who.sources, grace_us=grace_us, steps=steps)


def source_words(text: str) -> list[str]:
    """FILE.py or package.module as `locktender worker` takes it; refuses what is not there."""
    from pathlib import Path

    from locktender.cli import load_flow
    from locktender.cli.load_flow import check_file, check_module

    target = load_flow.parse(text)
    if target.is_file:
        check_file(Path(target.where))
        return [target.where]
    check_module(target.where)
    return ["--app", target.where]


def load_provisioner(text: str) -> GivenProvisioner:
    """What `MODULE:NAME`, or `FILE.py:NAME`, is."""
    from locktender.base.errors import InvalidInput, NotFound
    from locktender.base.names import did_you_mean
    from locktender.cli import load_flow

    target = load_flow.parse(text)
    if not target.flow:
        raise InvalidInput(
            "--provisioner names a module and what is in it.",
            field="provisioner",
            got=text,
            hint="e.g. --provisioner shop.machines:provisioner, or machines.py:Machines",
        )
    module = load_flow.load_source(target)
    names = [name for name in vars(module) if not name.startswith("_")]
    if not hasattr(module, target.flow):
        raise NotFound(
            f"there is no {target.flow!r} in {target.where}.",
            field="provisioner",
            got=target.flow,
            hint=did_you_mean(target.flow, names),
        )
    return getattr(module, target.flow)


def made_for(provisioner: GivenProvisioner, settings: Settings) -> Any:
    """A user's own provisioner; what their code raises while it is made is theirs."""
    from locktender.base.errors import LocktenderError
    from locktender.cli.errors import UserCode
    from locktender.cli.load_flow import users_trace
    from locktender.client.provisioners import made

    try:
        return made(provisioner, settings)
    except LocktenderError:
        raise
    except Exception as error:
        raise UserCode(
            f"the provisioner cannot be made: {type(error).__name__}: {error}",
            trace=users_trace(error),
            field="provisioner",
            hint="It is called with the settings, and nothing else.",
        ) from error
