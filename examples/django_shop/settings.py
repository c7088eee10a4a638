"""Settings of the smallest Django site with tasks. Run `order.py`, which says how."""

import os

SECRET_KEY = "for an example only"
USE_TZ = True
TASKS = {
    "default": {
        "BACKEND": "locktender.integrations.django.LocktenderBackend",
        "QUEUES": ["default", "mail"],
        # In production "postgresql://…", and "database": "default" to enqueue in Django's transactions.
        "OPTIONS": {"url": os.environ.get("SHOP_STORE", ".locktender/locktender.db")},
    }
}
