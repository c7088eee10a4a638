"""Workers that were asked for, in the file."""

from __future__ import annotations

from locktender.store.decode import asked_workers, decode_said, encode
from locktender.store.provisioning import Provision, Provisioned
from locktender.store.sqlite.commits import fence
from locktender.store.sqlite.session import Session, listed


def provision(tx: Session, provision: Provision) -> None:
    _, _, now = fence(tx, provision.term)
    until = now + provision.start_timeout_us
    tx.each("asked_add", [(name, now, until, body) for name, body in provision.asked.items()])
    forget(tx, provision.gone)
    if provision.said is not None:
        tx.run("provisioner_say", provision.term, encode(provision.said))


def forget(tx: Session, names: list[str]) -> None:
    if names:
        tx.run("asked_remove", listed(names))


def provisioned(tx: Session) -> Provisioned:
    asked, said = tx.all("asked_list"), tx.one("provisioner_said")
    return Provisioned(
        tx.now(), asked_workers(asked), None if said is None else decode_said(said[0])
    )
