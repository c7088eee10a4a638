"""CPU-bound work in processes: one per core, each step in a child of its own.

    python examples/cpu_processes.py
    locktender run examples/cpu_processes.py:primes --arg upto=200000

A child that is killed fails only the task it ran, which is tried again.
"""

import os

from locktender import flow, step


@step(executor="process", retries=2, timeout="1m")
def count_primes(bounds: tuple[int, int]) -> int:
    low, high = bounds
    return sum(
        all(number % divisor for divisor in range(2, int(number**0.5) + 1))
        for number in range(max(2, low), high)
    )


@step
def add(counts: list[int]) -> int:
    return sum(counts)


@flow(max_parallel={"process": os.cpu_count() or 1})
def primes(upto: int = 100_000, parts: int = 8) -> int:
    size = -(-upto // parts)
    ranges = [(start, min(start + size, upto)) for start in range(0, upto, size)]
    return add(count_primes.map(ranges))


if __name__ == "__main__":
    print(primes.run())
