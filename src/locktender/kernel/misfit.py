"""Why no worker fits: during a rolling deploy, mostly because of the version its step is in."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from locktender.kernel.place import Skill, Worker


def misfit(workers: Sequence[Worker], skill: Skill) -> str:
    """What the workers lack, the nearest first: the version, then a label, then permits, then the step itself."""
    wanted = ", ".join(f"{label}={value}" for label, value in skill.needs)
    only = len(workers) == 1
    text = "the only worker cannot" if only else f"none of {len(workers):,} workers can"
    text += f" run step {skill.step}"
    knowing = [
        worker for worker in workers if worker.row.steps is None or skill.step in worker.row.steps
    ]
    able = [worker for worker in knowing if _version(worker, skill) == skill.signature]
    if not knowing:
        unknown = "it does not know it" if only else "none knows it"
        return f"{text}{f' with {wanted}' if wanted else ''}: {unknown}"
    if not able:
        others = ", ".join(sorted({_version(worker, skill) for worker in knowing}))
        return (
            f"{text} in version {skill.signature}, which its run was submitted with;"
            f" {_know(knowing, only=only)} it in another version ({others})"
        )
    labelled = [
        worker
        for worker in able
        if all(worker.row.labels.get(label) == value for label, value in skill.needs)
    ]
    if not labelled:
        asked = " ".join(f"--label {shlex.quote(f'{key}={value}')}" for key, value in skill.needs)
        return (
            f"{text} with {wanted}; {_know(able, only=only)} it without that label."
            f" Start one that has it: locktender worker … {asked}"
        )
    return f"{text}: {_know(labelled, only=only)} it without {skill.executor} permits"


def _version(worker: Worker, skill: Skill) -> str:
    steps = worker.row.steps
    return skill.signature if steps is None else steps.get(skill.step, "")


def _know(workers: Sequence[Worker], *, only: bool) -> str:
    if only:
        return "it knows"
    return "1 worker knows" if len(workers) == 1 else f"{len(workers):,} workers know"
