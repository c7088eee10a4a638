"""What must come of a generated program: a plain evaluation of its calls in their order, without the kernel.

Most of a program has one outcome. Where the engine may choose (items of a map in which one
fails, a run that is cancelled), the oracle says what is allowed and goes on from what was seen.
It judges one try of a run at a time and keeps what a retry keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support import program_waits
from tests.support.generated_flows import steps
from tests.support.programs import FOR_GOOD, Call, Program

HANDLER: Call = {"args": [], "after": [], "when": None, "over": None, "retries": 0}
BAD = ("failed", "timed_out")
PASSED = "which it passes on"
ENDED = ("completed", "skipped", "cancelled", *BAD)
Key = tuple[str, int | None]


@dataclass
class Seen:
    """One task after a try, with the executions of that try."""

    state: str
    message: str = ""
    past: int = 0
    """Executions in earlier tries."""
    executions: list[Any] = field(default_factory=list[Any])


@dataclass
class Try:
    """What was seen of one try of a run."""

    state: str
    result: Any
    tasks: dict[Key, Seen]
    forced: bool = False
    kills: int = 0
    """Workers that were killed while it ran: each may cost every task one more execution."""


@dataclass
class Node:
    name: str
    call: Call
    run_if: str
    plan: dict[str, Any]
    data: set[str]
    """Nodes whose results it takes, in its arguments or its condition."""
    needs: set[str]
    """Nodes that must have ended before it starts; its source is not one of them."""
    source: str | None = None
    """The map it follows item by item."""

    @property
    def mapped(self) -> bool:
        return self.call["over"] is not None


@dataclass
class _Scope:
    sequential: bool
    names: list[str] = field(default_factory=list[str])
    last: str | None = None
    chain: list[str] = field(default_factory=list[str])
    """The last plain step and all since: a plain step needs them all."""
    failure_steps: list[str] = field(default_factory=list[str])


def nodes_of(program: Program) -> list[Node]:
    """The program's calls and failure handlers in the order in which they are made."""
    nodes: list[Node] = []
    mapped: set[str] = set()

    def add(name: str, call: Call, run_if: str, after: Iterable[str], scopes: list[_Scope]) -> None:
        needs = set(after) | set(call["after"])
        for scope in scopes:
            if scope.sequential and run_if == "success":
                needs |= set(scope.chain)
            elif scope.sequential:
                needs |= set() if scope.last is None else {scope.last}
                needs |= set(scope.failure_steps)
        data = set(call["args"]) | ({call["when"]["of"]} if call["when"] else set())
        needs |= data
        over, source = call["over"], None
        if isinstance(over, str):
            data.add(over)
            source = over if over in mapped else None
            if source is None or run_if == "failure":
                needs.add(over)
        plan = call.get("plan") or steps.HANDLER_PLANS[call["ends"]]
        nodes.append(Node(name, call, run_if, plan, data, needs, source))
        if over is not None:
            mapped.add(name)
        for scope in scopes:
            scope.names.append(name)
            scope.chain = [name] if run_if == "success" else [*scope.chain, name]
            if run_if == "failure":
                scope.failure_steps.append(name)
            else:
                scope.last, scope.failure_steps = name, []

    def handle(scope: dict[str, Any], after: Sequence[str], scopes: list[_Scope]) -> None:
        call = {**HANDLER, "ends": scope["on_failure"], "takes": scope["handler_takes"]}
        add(f"{scope['name']}_handler", call, "failure", after, scopes)

    def walk(flow: dict[str, Any], outside: list[_Scope]) -> None:
        scopes = [*outside, _Scope(flow["sequential"])]
        for call in flow["calls"]:
            if "calls" in call:
                walk(call, scopes)
                continue
            add(call["name"], call, call["run_if"], (), scopes)
            if call["on_failure"]:
                handle(call, [call["name"]], scopes)
        if flow["on_failure"] and scopes[-1].names:
            handle(flow, list(scopes[-1].names), scopes)

    walk(program, [])
    return nodes


class Oracle:
    """Judges the tries of one run in their order."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes = nodes_of(program)
        self.by_name = {node.name: node for node in self.nodes}
        self.kept: dict[Key, Any] = {}
        """Results of tasks that completed and that this try keeps."""
        self.kept_errors: set[Key] = set()
        """Collected errors that this try keeps."""
        self.before: dict[Key, Seen] = {}
        """Tasks as the last try left them."""
        self.values: dict[Key, Any] = {}
        self.phase: dict[str, str] = {}
        self.items: dict[str, list[tuple[bool, Any]]] = {}
        """Of a map that was expanded: each item, whether it has a value, and which."""
        self.unsure: set[str] = set()
        """Maps of a run that was cut of which it cannot be seen whether they had no items or were skipped."""
        self.problems: list[str] = []
        self.seen = Try("", None, {})

    # -- tries -------------------------------------------------------------------------------------

    def judge(self, seen: Try) -> list[str]:
        """What is wrong with what was seen of this try."""
        self.seen, self.problems = seen, []
        self.phase, self.items, self.values, self.unsure = {}, {}, {}, set()
        if not self._never_started():
            for node in self.nodes:
                self._judge(node)
            known = {node.name for node in self.nodes}
            self.problems += [f"unknown task {key}" for key in seen.tasks if key[0] not in known]
            self._judge_run()
        self._keep()
        return self.problems

    def _never_started(self) -> bool:
        """Cancelled while it was queued: nothing of it changes."""
        seen = self.seen
        return (
            seen.state == "cancelled"
            and {key: task.state for key, task in seen.tasks.items()}
            == {key: task.state for key, task in self.before.items()}
            and not any(task.executions for task in seen.tasks.values())
        )

    def _keep(self) -> None:
        """What a retry starts from: results and collected errors, without those that a clean-up was given,
        and all that follows from those."""
        if self.phase:
            done = {key for key, task in self.seen.tasks.items() if task.state == "completed"}
            errors = {key for key, task in self.seen.tasks.items() if self._is_collected(key, task)}
        else:
            done, errors = set(self.kept), self.kept_errors
            self.values = dict(self.kept)
        undone: set[str] = set()
        for node in self.nodes:
            if node.run_if != "success" and any(name == node.name for name, _ in done):
                undone |= {node.name} | node.data
            elif node.run_if != "success" and self.phase.get(node.name) in ("ok", "failed"):
                undone.add(node.name)
        for node in self.nodes:
            if undone & (node.needs | node.data):
                undone.add(node.name)
        self.kept = {
            key: self.values[key] for key in done if key[0] not in undone and key in self.values
        }
        self.kept_errors = {key for key in errors if key[0] not in undone}
        self.before = self.seen.tasks

    def _is_collected(self, key: Key, task: Seen) -> bool:
        """A failure that was handed on as a value. One whose run was ended before its last attempt was not."""
        node = self.by_name[key[0]]
        collects = task.state in BAD and node.call.get("on_error") == "collect"
        collects = collects and node.run_if == "success"
        spent = len(task.executions) >= self._tries(node) or key in self.kept_errors
        return collects and (spent or not self.cut)

    @property
    def cut(self) -> bool:
        """The run was ended before everything in it had its turn."""
        fast = self.program["fail"] == "fast" and "failed" in self.phase.values()
        return self.seen.state == "cancelled" or fast or self._fails_fast()

    def _fails_fast(self) -> bool:
        return self.program["fail"] == "fast" and any(
            task.state in BAD and self.by_name[name].call.get("on_error") != "collect"
            for (name, _), task in self.seen.tasks.items()
            if name in self.by_name
        )

    def _judge_run(self) -> None:
        failed = "failed" in self.phase.values()
        expected = "failed" if failed else "succeeded"
        if self.seen.state == "cancelled":
            return
        if self.seen.state != expected:
            self._wrong("the run", f"is {self.seen.state}, must be {expected}")
        elif expected == "succeeded":
            wanted = {
                node.name: self._output(node.name) for node in self.nodes if "name" in node.call
            }
            if steps.plain(self.seen.result) != steps.plain(wanted):
                self._wrong("the run", f"has the result {self.seen.result}, must have {wanted}")

    def _wrong(self, what: object, text: str) -> None:
        self.problems.append(f"{what} {text}")

    # -- values ------------------------------------------------------------------------------------

    def _output(self, name: str) -> Any:
        if self.by_name[name].mapped:
            if name not in self.items:
                return None
            return [value if there else None for there, value in self.items[name]]
        return self.values.get((name, None)) if self.phase[name] == "ok" else None

    def _args(self, node: Node) -> Any:
        if "name" in node.call:
            return [self._output(name) for name in node.call["args"]]
        failed = [each.name for each in self.nodes if each.name in node.needs]
        failed = [name for name in failed if self.phase[name] == "failed"]
        return failed[0] if failed and node.call["takes"] else None

    def _holds(self, node: Node) -> bool:
        when = node.call["when"]
        if when is None:
            return True
        value = steps.plain(self._output(when["of"]))
        match when["op"]:
            case "true":
                return bool(value)
            case "not":
                return not value
            case "==":
                return value == when["value"]
            case _:
                return value != when["value"]

    # -- nodes -------------------------------------------------------------------------------------

    def _verdict(self, node: Node) -> str:
        """`run`, `skipped` (nothing is wrong) or `tainted` (something before it failed)."""
        phases = {self.phase[name] for name in node.needs}
        if node.run_if == "success" and phases & {"failed", "tainted"}:
            return "tainted"
        if node.source is not None and node.source not in self.items:
            return "skipped" if self.phase[node.source] == "skipped" else "tainted"
        over = node.call["over"]
        if isinstance(over, str) and node.source is None and self.phase[over] != "ok":
            return "skipped" if self.phase[over] == "skipped" else "tainted"
        if node.run_if == "failure" and "failed" not in phases:
            return "skipped"
        skipped = any(self.phase[name] == "skipped" for name in node.data)
        if node.run_if == "success" and skipped:
            return "skipped"
        return "run" if self._holds(node) else "skipped"

    def _judge(self, node: Node) -> None:
        verdict = self._verdict(node)
        cleans_up = node.run_if == "always" or (
            node.run_if == "failure" and self.seen.state == "failed"
        )
        free = self.cut and (not cleans_up or self.seen.forced)
        if free or (verdict == "run" and self._may_lack_items(node)):
            self._judge_cut(node, verdict)
        elif verdict == "run":
            self._judge_ran(node)
        elif self.cut and node.source is not None and verdict == "tainted" and self._ran(node):
            # Whether a map that was cut had its items yet cannot be seen: what followed it may have run.
            self._judge_cut(node, verdict)
        else:
            self.phase[node.name] = verdict
            self._judge_skipped(node)

    def _may_lack_items(self, node: Node) -> bool:
        """Whether the map it follows may have been cut before it had items; its rows are of an earlier try."""
        source = None if node.source is None else self.by_name[node.source]
        return (
            self.cut
            and source is not None
            and not any(there for there, _ in self.items.get(source.name, ()))
            and not self._ran(source)
            and not self._ran(node)
        )

    def _ran(self, node: Node) -> bool:
        return any(task.executions for _, task in self._rows(node))

    def _rows(self, node: Node) -> list[tuple[int | None, Seen]]:
        return [(idx, task) for (name, idx), task in self.seen.tasks.items() if name == node.name]

    def _judge_skipped(self, node: Node) -> None:
        rows = self._rows(node)
        if not rows:
            self._wrong(node.name, "has no task, must be skipped")
        for idx, task in rows:
            if task.state != "skipped" or task.executions:
                self._wrong(
                    (node.name, idx),
                    f"is {task.state} after {len(task.executions)} executions, must be skipped",
                )

    def _elements(self, node: Node) -> list[tuple[bool, Any]]:
        """The items a map is to run over; without a value: what it follows gave none."""
        over = node.call["over"]
        if node.source is not None:
            if node.run_if != "success":
                return [
                    (True, value if there else None) for there, value in self.items[node.source]
                ]
            return list(self.items[node.source])
        values = self._output(over) if isinstance(over, str) else over
        return [(True, value) for value in values]

    def _passes_on(self, node: Node, item: Any) -> bool:
        """Whether the item is an error that the body is not called for."""
        is_error = isinstance(item, dict) and "error" in item
        return is_error and not node.call["take_errors"] and node.run_if == "success"

    def _judge_passed(self, node: Node, idx: int) -> None:
        task = self.seen.tasks.get((node.name, idx))
        if task is None or task.state != "skipped" or task.executions or PASSED not in task.message:
            self._wrong((node.name, idx), f"is {task}, must be skipped: its item is an error")

    def _judge_ran(self, node: Node) -> None:
        args = self._args(node)
        if not node.mapped:
            state = self._judge_task(node, None, None, args, free=False)
            self.phase[node.name] = {"completed": "ok", "missing": "tainted"}.get(state, "failed")
            return
        elements = self._elements(node)
        collects = node.call["on_error"] == "collect"
        closes = not collects and any(
            there and not self._passes_on(node, item) and self._may_fail(node, idx, item)
            for idx, (there, item) in enumerate(elements)
        )
        states: list[str] = []
        self.items[node.name] = []
        for idx, (there, item) in enumerate(elements):
            if there and self._passes_on(node, item):
                state = "passed"
                self._judge_passed(node, idx)
            elif there:
                state = self._judge_task(node, idx, item, args, free=closes)
            else:
                state = "missing"
                task = self.seen.tasks.get((node.name, idx))
                if task is None or task.state != "skipped" or task.executions:
                    self._wrong((node.name, idx), f"is {task}, must be skipped: it has no item")
            states.append(state)
            self._add_item(node, idx, state, item, collects=collects)
        self._judge_other_rows(node, len(elements))
        must_fail = closes and not self.seen.kills
        if must_fail and "failed" not in states:
            self._wrong(node.name, f"has no failed item: {states}")
        if "failed" in states and not collects:
            self.phase[node.name] = "failed"
        else:
            self.phase[node.name] = "tainted" if "missing" in states else "ok"

    def _add_item(self, node: Node, idx: int, state: str, item: Any, *, collects: bool) -> None:
        if state == "passed":
            self.items[node.name].append((True, item))
        elif state == "completed":
            self.items[node.name].append((True, self.values.get((node.name, idx))))
        elif state == "failed" and collects:
            error = {"error": self.seen.tasks[node.name, idx].message}
            self.items[node.name].append((True, error))
        else:
            self.items[node.name].append((False, None))

    def _judge_other_rows(self, node: Node, count: int) -> None:
        for idx, task in self._rows(node):
            if idx is not None and idx < count:
                continue
            # The row of an earlier try in which the map was skipped whole.
            if task.state != "skipped" or task.executions or (node.name, idx) not in self.before:
                self._wrong((node.name, idx), f"is {task}, must not be there")

    # -- tasks -------------------------------------------------------------------------------------

    def _left(self, node: Node, idx: int | None, item: Any) -> int:
        """Executions that are still to fail before one succeeds."""
        task = self.seen.tasks.get((node.name, idx))
        past = 0 if task is None else task.past
        return max(0, steps.failures_of(node.plan, item) - past)

    def _tries(self, node: Node) -> int:
        return 1 if node.plan["how"] == "fatal" else node.call["retries"] + 1

    def _may_fail(self, node: Node, idx: int | None, item: Any) -> bool:
        if (node.name, idx) in self.kept:
            return False
        return self._left(node, idx, item) >= self._tries(node)

    def _judge_task(self, node: Node, idx: int | None, item: Any, args: Any, *, free: bool) -> str:
        """A task that was to run: `completed`, `failed` or `missing`. `free`: its map may have stopped first."""
        key = (node.name, idx)
        task = self.seen.tasks.get(key)
        if task is None:
            self._wrong(key, "has no task, must run")
            return "missing"
        if key in self.kept_errors:
            if task.state not in BAD or task.executions:
                self._wrong(key, f"is {task.state}, must keep its collected error")
            return "failed"
        if key in self.kept:
            return self._judge_kept(key, task)
        if "wait" in node.call:
            return self._judge_wait(node, task, args)
        left, tries = self._left(node, idx, item), self._tries(node)
        fails = left >= tries
        failed = "timed_out" if node.plan["how"] == "late" else "failed"
        states = {failed if fails else "completed"}
        most = tries if fails else left + 1
        # On a busy machine the time may be over before the body has begun.
        least = 0 if node.plan["how"] == "late" else most
        if self.seen.kills:
            least, most = min(1, least), most + self.seen.kills
            if fails and left < FOR_GOOD - 1000:
                states.add("completed")
        if free:
            least = 0
            states |= {"skipped"} | ({failed} if left else set())
            states |= {"cancelled"} if self.seen.kills else set()
        count = len(task.executions)
        if task.state not in states or not least <= count <= most:
            self._wrong(
                key,
                f"is {task.state} after {count} executions, must be {' or '.join(sorted(states))}"
                f" after {least} to {most}",
            )
        self._judge_executions(node, idx, item, args, task)
        return self._ended(node, idx, item, args, task)

    def _judge_wait(self, node: Node, task: Seen, args: Any) -> str:
        """A wait has no body: its state and its value are all there is."""
        fails = program_waits.fails(node.call["wait"])
        if task.executions or task.state not in ENDED or (task.state == "completed") == fails:
            self._wrong(node.name, f"is {task.state} ({task.message}), fails: {fails}")
        if task.state == "completed":
            passed = args[0] if args else None
            self.values[node.name, None] = program_waits.value_of(node.call["wait"], passed)
        if not self.unsure.isdisjoint(node.call["args"]):
            self.unsure.add(node.name)
        return "completed" if task.state == "completed" else "failed"

    def _judge_kept(self, key: Key, task: Seen) -> str:
        if task.state != "completed" or task.executions:
            self._wrong(
                key,
                f"is {task.state} after {len(task.executions)} executions, must keep its result",
            )
        self.values[key] = self.kept[key]
        return "completed"

    def _judge_executions(
        self, node: Node, idx: int | None, item: Any, args: Any, task: Seen
    ) -> None:
        wanted = steps.digest(item, args)
        for each in task.executions:
            if each.given != wanted and self.unsure.isdisjoint(node.call["args"]):
                self._wrong((node.name, idx), f"was given something else than {item} and {args}")
        if task.state == "completed" and (
            not task.executions or task.executions[-1].outcome != "ok"
        ):
            self._wrong((node.name, idx), f"completed after {task.executions}")
        last = task.executions[-1].outcome if task.executions else "none"
        if task.state in BAD and (last == "ok" or (last == "none" and node.plan["how"] != "late")):
            self._wrong((node.name, idx), f"is {task.state} after {task.executions}")

    def _ended(self, node: Node, idx: int | None, item: Any, args: Any, task: Seen) -> str:
        if task.state == "completed":
            self.values[node.name, idx] = steps.result_of(
                node.plan, node.call.get("name", ""), item, args
            )
        if not self.unsure.isdisjoint(node.call["args"]):
            self.unsure.add(node.name)
        return (
            "failed" if task.state in BAD else {"completed": "completed"}.get(task.state, "missing")
        )

    # -- runs that were cut ------------------------------------------------------------------------

    def _judge_cut(self, node: Node, verdict: str) -> None:
        """A node of a run that was ended: each task may have been stopped, none may have gone wrong."""
        rows = self._rows(node)
        blocked = (
            verdict == "tainted"
            and node.run_if == "success"
            and any(self.phase[name] == "failed" for name in node.needs)
        )
        args = self._args(node)
        elements: list[tuple[bool, Any]] = []
        if node.mapped and (node.source is None or node.source in self.items):
            elements = self._elements(node) if self._has_items(node) else []
        for idx, task in rows:
            if task.state not in ENDED:
                self._wrong((node.name, idx), f"is {task.state}, must have ended")
            if blocked and task.executions:
                self._wrong((node.name, idx), "was executed, must be skipped")
            if (node.name, idx) in self.kept and not task.executions and task.state == "completed":
                self.values[node.name, idx] = self.kept[node.name, idx]
                continue
            item = None
            if idx is not None:
                there, item = elements[idx] if idx < len(elements) else (False, None)
                if task.executions and not there:
                    self._wrong((node.name, idx), "was executed without an item")
                if task.executions and self._passes_on(node, item):
                    self._wrong((node.name, idx), "was executed with an error")
            if task.executions:
                self._judge_cut_task(node, idx, item, args, task)
            elif "wait" in node.call and task.state in ("completed", *BAD):
                if blocked:
                    self._wrong(node.name, f"is {task.state}, must be skipped")
                self._judge_wait(node, task, args)
        self._phase_of_cut(node, rows, elements)

    def _has_items(self, node: Node) -> bool:
        over = node.call["over"]
        return (
            node.source is not None or not isinstance(over, str) or self._output(over) is not None
        )

    def _judge_cut_task(
        self, node: Node, idx: int | None, item: Any, args: Any, task: Seen
    ) -> None:
        most = min(self._left(node, idx, item) + 1, self._tries(node)) + self.seen.kills
        if len(task.executions) > most:
            self._wrong((node.name, idx), f"had {len(task.executions)} executions, at most {most}")
        self._judge_executions(node, idx, item, args, task)
        self._ended(node, idx, item, args, task)

    def _may_be_old(self, node: Node, rows: list[tuple[int | None, Seen]]) -> bool:
        """Whether a map may have been skipped before it had items in this try: its rows are of an earlier one."""
        return all(
            task.state == "skipped" and not task.executions and (node.name, idx) in self.before
            for idx, task in rows
        )

    def _state_of(self, task: Seen) -> str:
        return "passed" if task.state == "skipped" and PASSED in task.message else task.state

    def _phase_of_cut(
        self, node: Node, rows: list[tuple[int | None, Seen]], elements: list[tuple[bool, Any]]
    ) -> None:
        states = [self._state_of(task) for _, task in rows]
        if not node.mapped:
            good, bad = states == ["completed"], any(state in BAD for state in states)
            self.phase[node.name] = "ok" if good else "failed" if bad else "tainted"
            return
        collects = node.call["on_error"] == "collect"
        if rows and (elements == [] or self._may_be_old(node, rows)):
            self.unsure.add(node.name)
        if any(idx is not None for idx, _ in rows) or (elements == [] and not rows):
            self.items[node.name] = []
            for idx, (_, item) in enumerate(elements):
                task = self.seen.tasks.get((node.name, idx))
                state = "missing" if task is None else self._state_of(task)
                state = "failed" if state in BAD else state
                self._add_item(node, idx, state, item, collects=collects)
        bad = any(state in BAD for state in states) and not collects
        good = ("completed", "passed", *(BAD if collects else ()))
        whole = all(state in good for state in states)
        self.phase[node.name] = "failed" if bad else "ok" if whole else "tainted"
