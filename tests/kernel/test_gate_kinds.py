"""Every kind of gate has its types, its text, its checker rule and its scenario, and they work together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.worlds import line_before, settle

from locktender.kernel.explain import Typical, explain_task
from locktender.kernel.explain_runs import explain_queued
from locktender.kernel.gates import KINDS
from locktender.simulate.scenarios import GATE_SCENARIOS
from locktender.simulate.world import SimWorld

CHECK = Path(__file__).parents[2] / "tools" / "check_gates.py"


def run_check(before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"{before}\nimport runpy; runpy.run_path({str(CHECK)!r}, run_name='__main__')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_every_kind_is_complete():
    assert run_check().returncode == 0


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (
            "KINDS['rate'] = KINDS['rate']._replace(gate=KINDS['pool'].gate)",
            "gate kind 'rate' has a row for its state (kernel/gates KINDS), but PoolGate does not override dump()",
        ),
        (
            "KINDS['rate'] = KINDS['rate']._replace(state=None)",
            "gate kind 'rate' has no row for its state (kernel/gates KINDS), but RateGate overrides restore()",
        ),
    ],
)
def test_a_kind_that_does_not_store_its_state_is_refused(before: str, said: str):
    done = run_check(f"from locktender.kernel.gates import KINDS; {before}")
    assert (done.returncode, said in done.stderr) == (1, True)


def test_a_kind_that_lacks_its_parts_is_refused():
    done = run_check("from locktender.kernel.gates import KINDS; KINDS['budget'] = KINDS['pool']")
    assert done.returncode == 1
    assert "gate kind 'budget' has no text" in done.stderr
    assert "gate kind 'budget' has no checker rule" in done.stderr
    assert "gate kind 'budget' has no scenario" in done.stderr
    assert "gate kind 'budget' has no family in the UI" in done.stderr
    assert "gate kind 'budget' has no text in the UI" in done.stderr


def test_a_kind_without_its_types_is_refused():
    done = run_check("from locktender.kernel.gates import KINDS; del KINDS['tag']")
    assert done.returncode == 1
    assert "gate kind 'tag' has no rule and state types" in done.stderr


def test_a_gate_that_no_kind_names_is_refused(tmp_path: Path):
    """Though nothing imports its module."""
    (tmp_path / "budget.py").write_text(
        "from locktender.kernel.gates.protocol import SlotGate\n\n\n"
        "class BudgetGate(SlotGate):\n    KIND = 'budget'\n"
    )
    done = run_check(
        f"from locktender.kernel import gates; gates.__path__.append({str(tmp_path)!r})"
    )
    assert done.returncode == 1
    assert "locktender.kernel.gates.budget.BudgetGate is the gate of no kind" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_kind_of_tasks_unknown_to_the_checker_is_refused():
    done = run_check(
        "from locktender.kernel.explain import TASK_TEXTS; TASK_TEXTS['budget'] = TASK_TEXTS['pool']"
    )
    assert "gate kind 'budget' is not in TASK_GATES" in done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_wait_at_the_gate_of_this_kind_and_are_told_so(kind: str):
    sim = GATE_SCENARIOS[kind].world()
    found: set[str] = set()
    original = sim._act

    def act(*arguments: object) -> None:
        original(*arguments)  # type: ignore[arg-type]
        found.update(kinds_explained(sim))

    sim._act = act  # type: ignore[method-assign]
    settle(sim)
    assert kind in found


def kinds_explained(sim: SimWorld) -> set[str]:
    lead = sim.scheduler
    if lead is None:
        return set()
    reasons = [
        reason
        for entry in lead.lifecycle.tasks.values()
        for reason in explain_task(lead, entry, Typical(), sim.now)
    ]
    for head in lead.ledger.heads.values():
        reasons += explain_queued(lead, head, Typical(), line_before(lead, head), sim.now)
    return {reason.gate.partition(":")[0] for reason in reasons}
