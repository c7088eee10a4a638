"""Workers that were asked for: each verb one statement, with its fence inside."""

from __future__ import annotations

from locktender.store.decode import asked_workers, decode_said, encode
from locktender.store.postgres.commits import not_leader
from locktender.store.postgres.compose import Parts, columns
from locktender.store.postgres.session import Session
from locktender.store.provisioning import Provision, Provisioned


async def provision(tx: Session, provision: Provision) -> None:
    parts = Parts()
    parts.add("now", alias="clock")
    parts.add("term_fence", provision.term, alias="fence")
    if provision.asked:
        rows = columns(sorted(provision.asked.items()), 2)
        parts.add("asked_add", *rows, provision.start_timeout_us)
    if provision.gone:
        parts.add("asked_remove", sorted(provision.gone))
    if provision.said is not None:
        parts.add("provisioner_say", provision.term, encode(provision.said))
    parts.add("fence_answer")
    if not (await tx.compose(parts))[0][0]:
        raise not_leader(provision.term, await tx.row("leader"))


async def forget(tx: Session, names: list[str]) -> None:
    parts = Parts()
    parts.add("open_fence", alias="fence")
    parts.add("asked_remove", sorted(names))
    parts.add("fence_answer")
    await tx.compose(parts)


async def provisioned(tx: Session) -> Provisioned:
    asked, said, [[now]] = await tx.several(
        ("asked_list", ()), ("provisioner_said", ()), ("now", ())
    )
    return Provisioned(now, asked_workers(asked), decode_said(said[0][0]) if said else None)
