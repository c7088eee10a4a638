"""Enqueues tasks of a Django site and prints what became of them.

    pip install locktender django django-tasks
    export DJANGO_SETTINGS_MODULE=settings
    locktender worker --lead --app locktender.integrations.django --url .locktender/locktender.db
    python order.py

The worker also leads here. At most two mails at a time: `locktender limits set tag queue=mail 2`.
"""

# mypy: ignore-errors
# pyright: basic, reportMissingImports=false
from __future__ import annotations

import os
import time

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
django.setup()

from tasks import send_receipt, total  # noqa: E402


def wait(result):
    while not result.is_finished:
        time.sleep(0.05)
        result.refresh()
    return result.return_value


if __name__ == "__main__":
    cents = wait(total.enqueue([250, 1000]))
    print(wait(send_receipt.enqueue("ann@example.com", cents)))
