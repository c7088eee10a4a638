"""B14: a label outside `[labels]` is refused at submission; where settings change later, `why` says never."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.worlds import graph
from tests.support.worlds import step as node

from locktender import Client, InvalidFlow, InvalidInput, embedded, flow, step
from locktender.base.names import Declared, check_labels, never
from locktender.cli import arguments
from locktender.testing import eventually

GPUS: Declared = {"gpu": ("a100", "h100"), "zone": ()}


@step(needs={"gpu": "a100"})
def train() -> int:
    return 1


@flow
def training() -> int:
    return train()


@pytest.mark.parametrize(
    ("needs", "says", "hint"),
    [
        ({"gpu": "a10"}, "does not know the value 'a10'", "Did you mean 'a100'?"),
        ({"gpx": "a100"}, "does not know the label 'gpx'", "Did you mean 'gpu'?"),
        ({"zone": "eu", "gpu": "b2"}, "needs a worker with gpu=b2", "[labels]"),
    ],
)
def test_b14_a_label_nobody_may_have_is_refused(needs: dict[str, str], says: str, hint: str):
    with pytest.raises(InvalidFlow, match="would never start") as caught:
        check_labels(graph(node("a"), node("b", needs=needs)), GPUS)

    assert says in caught.value.message
    assert hint in (caught.value.hint or "")
    assert (caught.value.field or "").startswith("nodes[1].needs")
    assert "never" in (never(needs, GPUS) or "")


def test_b14_declared_labels_pass_and_undeclared_if_none_are():
    check_labels(graph(node("a", needs={"gpu": "h100", "zone": "anywhere"})), GPUS)

    assert never({"gpu": "h100"}, GPUS) is None
    assert never({"gpu": "b2"}, None) is None


def engine(folder: Path, **labels: object) -> Client:
    return embedded(folder / "locktender.db", work_dir=folder / "work", **labels)  # pyright: ignore[reportArgumentType]


def test_b14_submission_refuses_it_and_stores_nothing(tmp_path: Path):
    with engine(tmp_path, labels={"gpu": ["h100"]}) as client:
        with pytest.raises(InvalidFlow, match="does not know the value 'a100'"):
            client.submit(training)
        with pytest.raises(InvalidFlow):
            client.submit_many(training, [(), ()])

        assert client.runs.list() == []


def test_b14_after_a_change_of_settings_why_says_never(tmp_path: Path):
    with engine(tmp_path) as client:
        run = client.submit(training)
        [task] = eventually(run.tasks)
        assert "Start one that has it: locktender worker … --label gpu=a100" in str(run.why())
    with engine(tmp_path, labels={"gpu": ["h100"]}) as client:
        said = client.runs.get(run.id).why()
        [reason] = client.why(task.id).reasons

        assert reason.never
        assert "it needs gpu=a100, and [labels] does not know the value 'a100': never" in str(said)
    # and again without: whoever has the label runs it
    with engine(tmp_path, worker_labels={"gpu": "a100"}) as client:
        assert client.runs.get(run.id).result("60s") == 1


def test_one_value_of_each_label():
    assert arguments.labels(["gpu=a100", "zone=eu", "gpu=a100"]) == {"gpu": "a100", "zone": "eu"}
    with pytest.raises(InvalidInput, match="--label gpu is given twice") as caught:
        arguments.labels(["zone=eu", "gpu=a100", "gpu=h100"])
    assert caught.value.got == ["gpu=a100", "gpu=h100"]
