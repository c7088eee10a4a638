"""Steps that need what only some nodes of a Ray cluster have."""

from __future__ import annotations

import os

from locktender import flow, step


@step(needs={"gpu": "1"})
async def on_gpu() -> str:
    return os.environ["LOCKTENDER_PROVISION"]


@step(needs={"zone": "eu", "disk": "2"})
async def in_zone() -> str:
    return os.environ["LOCKTENDER_PROVISION"]


@step(needs={"gpu": "8"})
async def too_large() -> str:
    return ""


@flow
def gpu() -> str:
    return on_gpu()


@flow
def zone() -> str:
    return in_zone()


@flow
def large() -> str:
    return too_large()
