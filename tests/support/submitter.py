"""A process that submits without mercy: `submitter.py URL FILE SEED`; until its standard input ends.

Every new kind of answer is told in the file at once.

Several at a time, alone and in batches, with and without keys, and ended runs
once more. At its end it says how it was answered.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from locktender.base.clock import SystemClock
from locktender.base.model import NewRun
from locktender.client.submit import Prepared, Submission, prepare
from locktender.store.open import settings_for, store_for
from locktender.store.protocol import RunFilter, Store, Submit, Submitted
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

STEPS_FILE = Path(__file__).parents[1] / "steps" / "engine_steps.py"
steps: Any = load(source(STEPS_FILE))
TENANTS = "abcd"
KEYS = 6
AT_ONCE = 6
WAYS = ("attach", "reject", "replace", "skip_if_finished")
ENDED = ["cancelled", "failed"]


class Submitter:
    def __init__(self, url: str, answered: str, seed: int) -> None:
        self._answered = Path(answered)
        self._settings = settings_for(url, {})
        self._clock = SystemClock()
        self._dice = random.Random(seed)
        self.answers: Counter[str] = Counter()
        self.created: set[str] = set()
        self.rejections: list[tuple[str, int, int, int]] = []
        self.waits: list[int] = []

    async def work(self, store: Store, stopped: asyncio.Future[Any]) -> None:
        while not stopped.done():
            dice = self._dice.random()
            if dice < 0.6:
                await self._alone(store, self._unkeyed())
            elif dice < 0.85:
                await self._alone(store, self._keyed())
            elif dice < 0.97:
                await self._several(store)
            else:
                await self._again(store)

    async def _alone(self, store: Store, each: Prepared) -> None:
        [answer] = await store.submit(Submit([each.run], {each.run.graph: each.body}))
        self._note(each.run, answer)
        if answer.outcome == "rejected":
            self.rejections.append((answer.ceiling, answer.active, answer.limit, answer.as_of))
            self.waits.append(answer.retry_after_us)

    async def _several(self, store: Store) -> None:
        many = [self._unkeyed() for _ in range(self._dice.randint(2, 12))]
        partial = self._dice.random() < 0.5
        graphs = {each.run.graph: each.body for each in many}
        answers = await store.submit(Submit([each.run for each in many], graphs, partial))
        if not partial:
            assert len({answer.outcome for answer in answers}) == 1, answers
        for each, answer in zip(many, answers, strict=True):
            self._note(each.run, answer)

    async def _again(self, store: Store) -> None:
        ended = await store.runs(RunFilter(states=ENDED, limit=5))
        if ended:
            row = self._dice.choice(ended)
            [answer] = await store.retry([row.id])
            self._count(f"retry {answer.outcome}")

    def _count(self, kind: str) -> None:
        if kind not in self.answers:
            with self._answered.open("a") as file:
                file.write(kind + "\n")
        self.answers[kind] += 1

    def _note(self, run: NewRun, answer: Submitted) -> None:
        self._count(answer.outcome)
        if answer.outcome == "created":
            assert answer.id == run.id
            self.created.add(answer.id)

    def _unkeyed(self) -> Prepared:
        return self._prepared(Submission(([1], 0.0), tags={"tenant": self._dice.choice(TENANTS)}))

    def _keyed(self) -> Prepared:
        how: Any = self._dice.choice(WAYS)
        key = f"key-{self._dice.randrange(KEYS)}"
        tags = {"tenant": self._dice.choice(TENANTS)}
        return self._prepared(Submission(([1], 0.0), tags=tags, key=key, on_duplicate=how))

    def _prepared(self, submission: Submission) -> Prepared:
        return prepare(steps.many, submission, self._settings, self._clock)


def say(words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


async def main(url: str, answered: str, seed: str) -> None:
    submitter = Submitter(url, answered, int(seed))
    store = store_for(settings_for(url, {}))
    await store.open()
    say({"ready": True})
    stopped = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    await asyncio.gather(*(submitter.work(store, stopped) for _ in range(AT_ONCE)))
    await store.close()
    said = {
        "answers": submitter.answers,
        "created": sorted(submitter.created),
        "rejections": submitter.rejections,
        "waits": [min(submitter.waits, default=0), max(submitter.waits, default=0)],
    }
    say(said)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
