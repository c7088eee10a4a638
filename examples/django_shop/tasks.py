"""The shop's tasks. A worker finds each by its path."""

# mypy: ignore-errors
# pyright: basic, reportMissingImports=false
from __future__ import annotations

try:
    from django.tasks import task  # Django 6
except ImportError:
    from django_tasks import task  # pip install django-tasks


@task()
def total(prices: list[int]) -> int:
    return sum(prices)


@task(queue_name="mail", priority=10)
async def send_receipt(to: str, cents: int) -> str:
    return f"{to}: {cents / 100:.2f}"
