"""Generated programs: a flow's calls, how each body ends, and what an operator does meanwhile, from one seed.

A program is plain JSON, so that a failing one can be printed, stored and run again.
`tests/steps/generated_steps.py` makes a flow of it, `tests/support/oracle.py` says what must come of it.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.support.program_waits import add_waits

FOR_GOOD = 1_000_000
POOLS = ("p0", "p1", "p2")
POOL_LIMITS = (2, 4)
"""The least and the most a pool is ever set to. A task needs at most the least."""
MAX_CALLS = 9
MAX_DEPTH = 2
Call = dict[str, Any]
Program = dict[str, Any]


def generate(seed: int) -> Program:
    return add_waits(_Generator(seed).program())


class _Generator:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = Random(seed)
        self.errors = Random(f"errors {seed}")
        """Draws who takes errors, apart: so the rest of a seed's program stays as it is."""
        self.calls: list[Call] = []
        """Plain and mapped calls so far, of all flows: what later calls may refer to."""
        self.numbers = 0
        self.left = self.draw.randint(1, MAX_CALLS)
        self.max_parallel = self.draw.choice((None, None, 1, 2, 3))

    def program(self) -> Program:
        scope = self._scope(f"p{self.seed}")
        return {
            "seed": self.seed,
            **scope,
            "fail": "fast" if self._chance(0.1) else "continue",
            "max_parallel": self.max_parallel,
            "calls": self._calls(0, sequential=scope["sequential"]),
            "tries": [self._try() for _ in range(self.draw.choice((1, 2, 2, 3)))],
        }

    def _chance(self, share: float) -> bool:
        return self.draw.uniform(0, 1) < share

    def _scope(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "sequential": self._chance(0.15),
            "on_failure": self._handler(0.15),
            "handler_takes": self.errors.choice((True, False)),
        }

    def _handler(self, share: float) -> str | None:
        return self.draw.choice(("succeeds", "succeeds", "fails")) if self._chance(share) else None

    def _try(self) -> dict[str, Any]:
        """One try of the run: whether it is cancelled, after how many executions, and how."""
        if self._chance(0.7):
            return {"cancel_after": None, "force": False}
        return {"cancel_after": self.draw.randint(0, 8), "force": self._chance(0.2)}

    def _calls(self, depth: int, *, sequential: bool) -> list[Call]:
        made: list[Call] = []
        count = self.left if depth == 0 else self.draw.randint(1, 3)
        while count > 0 and self.left > 0:
            count -= 1
            if depth < MAX_DEPTH and self._chance(0.12):
                scope = self._scope(self._name("f"))
                inner = self._calls(depth + 1, sequential=sequential or scope["sequential"])
                if inner:
                    made.append({**scope, "calls": inner})
                continue
            self.left -= 1
            call = self._call(sequential=sequential)
            made.append(call)
            self.calls.append(call)
        return made

    def _name(self, letter: str) -> str:
        self.numbers += 1
        return f"{letter}{self.numbers}"

    def _some(self, most: int, share: float) -> list[str]:
        if not self.calls or not self._chance(share):
            return []
        # Mostly of the last few: long chains and diamonds, not stars.
        near = self.calls[-3:] if self._chance(0.7) else self.calls
        count = min(self.draw.randint(1, most), len(near))
        return sorted(each["name"] for each in self.draw.sample(near, count))

    def _call(self, *, sequential: bool) -> Call:
        draw = self.draw
        over = self._over() if self._chance(0.4) else None
        run_if = draw.choices(("success", "always", "failure"), (74, 14, 12))[0]
        plan = self._plan(mapped=over is not None, held=run_if != "always")
        call: Call = {
            "name": self._name("n"),
            "body": "async"
            if plan["how"] in ("late", "held")
            else draw.choices(("async", "thread", "process"), (70, 25, 5))[0],
            "over": over,
            "args": self._some(2, 0.6),
            "after": self._some(2, 0.25),
            "when": self._when() if self._chance(0.18) else None,
            "run_if": run_if,
            "on_failure": None if run_if == "failure" else self._handler(0.1),
            "retries": draw.choice((0, 0, 1, 2)),
            "timeout": "100ms" if plan["how"] == "late" else None,
            "pools": self._pools(),
            "window": None,
            "on_error": "fail",
            "take_errors": self.errors.choice((True, False, False)),
            "handler_takes": self.errors.choice((True, False)),
            "plan": plan,
        }
        if over is not None:
            call["window"] = draw.choice((None, 1, 2))
            call["on_error"] = "collect" if self._chance(0.35) else "fail"
        plan["bounds"] = self._bounds(call, sequential=sequential)
        return call

    def _over(self) -> Any:
        mapped = [each["name"] for each in self.calls if each["over"] is not None]
        lists = [each["name"] for each in self.calls if "size" in each["plan"]]
        kind = self.draw.choice(("literal", "mapped", "mapped", "list"))
        if kind == "mapped" and mapped:
            return self.draw.choice(mapped[-2:])
        # The items of a map over lists are lists; over a plain call of that kind, numbers.
        plain = [name for name in lists if name not in mapped]
        if kind == "list" and plain:
            return self.draw.choice(plain)
        size = self.draw.choice((0, 1, 2, 3, 3, 4))
        return [self.draw.randint(0, 99) for _ in range(size)]

    def _when(self) -> dict[str, Any] | None:
        if not self.calls:
            return None
        of = self.draw.choice(self.calls[-4:])["name"]
        op = self.draw.choice(("true", "true", "not", "==", "!="))
        return {"of": of, "op": op, "value": self.draw.randint(0, 9)}

    def _plan(self, *, mapped: bool, held: bool) -> dict[str, Any]:
        """How its executions end: with an `error` or a `fatal` one; `late`, when it has timed out; or `held`
        until the run is cancelled, which no clean-up is."""
        draw = self.draw
        how = draw.choices(("error", "fatal", "late", "held"), (82, 13, 2, 3 if held else 0))[0]
        plan: dict[str, Any] = {"how": how, "pause": draw.choice((0, 0, 0.001, 0.01))}
        if how in ("late", "held"):
            plan["failures"] = [FOR_GOOD if how == "late" else 1]
        else:
            several = 4 if mapped else 1
            plan["failures"] = draw.choices((0, 1, 2, 3, FOR_GOOD), (68, 12, 8, 4, 8), k=several)
        if self._chance(0.25):
            plan["size"] = draw.randint(0, 3)
        return plan

    def _pools(self) -> dict[str, int]:
        if not self._chance(0.4):
            return {}
        names = self.draw.sample(POOLS, self.draw.choice((1, 1, 2)))
        return {name: self.draw.randint(1, POOL_LIMITS[0]) for name in sorted(names)}

    def _bounds(self, call: Call, *, sequential: bool) -> list[list[Any]]:
        """Under which names a body records itself, with its weight; `/` stands for its run."""
        bounds: list[list[Any]] = [[name, slots] for name, slots in call["pools"].items()]
        if call["over"] is not None and (call["window"] or sequential):
            bounds.append([f"/{1 if sequential else call['window']}/window {call['name']}", 1])
        if self.max_parallel:
            bounds.append([f"/{self.max_parallel}/max_parallel", 1])
        return bounds
