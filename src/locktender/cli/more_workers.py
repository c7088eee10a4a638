"""Options of `server`, `dev` and `run` about workers that are started on overflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from locktender.base.config import Settings
    from locktender.cli.load_flow import Target
    from locktender.client.more_workers import GivenProvisioner, MoreWorkers

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
        help="A label of the workers started here, e.g. gpu=a100. Repeatable.",
    ),
]
OwnProvisioner = Annotated[
    str | None,
    typer.Option(
        "--provisioner",
        metavar="KIND|MODULE:NAME",
        help="Starts the workers instead: a kind of \\[provisioner] in the settings, or an object of yours.",
    ),
]
_EXAMPLE = "locktender server --spawn flows.py --max-workers 3"


class Wanted(NamedTuple):
    """What starts workers; false: nothing does."""

    sources: list[str]
    """For workers on this machine, as `locktender worker` takes them."""
    provisioner: GivenProvisioner | None = None

    def __bool__(self) -> bool:
        return bool(self.sources) or self.provisioner is not None


def given(max_workers: str | None, label: Sequence[str] | None) -> dict[str, Any]:
    """The options as settings."""
    from locktender.cli import arguments

    found: dict[str, Any] = {}
    if max_workers is not None:
        from locktender.cli.arguments import number

        found["max_workers"] = number(max_workers)
    if label:
        found["worker_labels"] = arguments.labels(label)
    return found


def wanted(spawn: Sequence[str] | None, provisioner: str | None, settings: Settings) -> Wanted:
    """What `--spawn` and `--provisioner` name, checked before the server starts."""
    from locktender.base.errors import InvalidInput

    if spawn and provisioner is not None:
        raise InvalidInput(
            "--spawn and --provisioner cannot be used together: both start workers.",
            field="provisioner",
            got=provisioner,
            hint="Leave one of them out.",
        )
    if provisioner is not None:
        return Wanted([], load_provisioner(provisioner))
    if not spawn and settings.provisioner:
        from locktender.provision.options import provisioner_of

        return Wanted([], provisioner_of)
    return Wanted([word for text in spawn or () for word in source_words(text)])


def wanted_by_dev(target: Target, provisioner: str | None, settings: Settings) -> Wanted:
    """`dev` has a worker of its own: without a maximum it starts no others."""
    from locktender.client.more_workers import check_idle_exit

    if provisioner is not None:
        check_maximum(settings, "--provisioner")
        return Wanted([], load_provisioner(provisioner))
    if not settings.max_workers:
        return Wanted([])
    check_idle_exit(settings)
    return Wanted([target.where] if target.is_file else ["--app", target.where])


def check_wanted(wanted: Wanted, settings: Settings) -> None:
    """Refuses a maximum without a way to start workers, and a way without a maximum."""
    from locktender.base.errors import InvalidInput
    from locktender.client.more_workers import check_idle_exit, given_by_argument

    if wanted:
        check_maximum(settings, "--spawn" if wanted.sources else "--provisioner")
        if wanted.sources:
            check_idle_exit(settings)
        return
    for key, option in (("max_workers", "--max-workers"), ("worker_labels", "--label")):
        if any(
            given_by_argument(settings, each)
            for each in settings.sources
            if each.partition(".")[0] == key
        ):
            raise InvalidInput(
                f"{option} is for workers that this server starts, but it starts none.",
                field=key,
                hint=f"Add --spawn: {_EXAMPLE}, or --provisioner MODULE:NAME.",
            )


def check_maximum(settings: Settings, option: str) -> None:
    """Refuses `option` without a maximum."""
    from locktender.client.more_workers import no_maximum

    if not settings.max_workers:
        raise no_maximum(option, "Say --max-workers 3")


def started(
    wanted: Wanted, settings: Settings, *, grace_us: int | None = None, same_code: bool = False
) -> MoreWorkers | None:
    """None: no workers are started. `same_code`: the sources are loaded in this process too."""
    from locktender.client.more_workers import MoreWorkers, local_workers, steps_here

    if wanted.provisioner is not None:
        return MoreWorkers(made_for(wanted.provisioner, settings), settings)
    if not wanted.sources:
        return None
    steps = steps_here if same_code else None
    return local_workers(settings, wanted.sources, grace_us=grace_us, steps=steps)


def source_words(text: str) -> list[str]:
    """FILE.py or package.module as `locktender worker` takes it; refuses one that does not exist."""
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
    """The object that `MODULE:NAME` or `FILE.py:NAME` names."""
    from locktender.base.errors import InvalidInput, NotFound
    from locktender.base.names import did_you_mean
    from locktender.cli import load_flow
    from locktender.provision.options import KINDS, provisioner_of

    if text in KINDS:
        return lambda settings: provisioner_of(_of_kind(text, settings))
    target = load_flow.parse(text)
    if not target.flow:
        raise InvalidInput(
            "--provisioner needs a module and a name in it, or a kind.",
            field="provisioner",
            got=text,
            hint=did_you_mean(text, KINDS)
            or "e.g. --provisioner shop.machines:provisioner, or machines.py:Machines",
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


def _of_kind(kind: str, settings: Settings) -> Settings:
    import msgspec

    return msgspec.structs.replace(settings, provisioner={**settings.provisioner, "kind": kind})


def made_for(provisioner: GivenProvisioner, settings: Settings) -> Any:
    """A user's own provisioner; an error of their code is shown with its traceback."""
    from locktender.base.errors import LocktenderError
    from locktender.cli.errors import UserCode
    from locktender.cli.load_flow import users_trace
    from locktender.client.more_workers import made

    try:
        return made(provisioner, settings)
    except LocktenderError:
        raise
    except Exception as error:
        raise UserCode(
            f"failed to make the provisioner: {type(error).__name__}: {error}",
            trace=users_trace(error),
            field="provisioner",
            hint="It is called with the settings as its only argument.",
        ) from error
