"""Durable workflows whose concurrency and cost are predictable."""
