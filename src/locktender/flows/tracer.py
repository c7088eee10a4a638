"""The recorder behind a flow's body: every call of a step becomes a node.

One tracer serves one trace, in one thread; the running one is found by a
context variable, so that a step's call knows whether it is to record or to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, cast

from locktender.base import names
from locktender.base.errors import InvalidFlow
from locktender.base.graph import (
    AnyTemplate,
    AwaitedEvent,
    DictOf,
    FailureOf,
    Item,
    ListOf,
    Node,
    OnError,
    Output,
    PoolNeed,
    RunIf,
    Tag,
    Wait,
)
from locktender.base.graph_check import MAX_NODES
from locktender.flows import caching
from locktender.flows.definitions import (
    FlowDef,
    StepCall,
    StepDef,
    check_takes_error,
    check_takes_errors,
    takes_failure,
)
from locktender.flows.handles import Handle, annotation_of, condition_of, output_of
from locktender.flows.options import Placeholder
from locktender.flows.registry import registry
from locktender.flows.templates import Templates
from locktender.flows.trace_cache import Args, Kwargs, Over, Taken, TracePlace

MAX_INNER_FLOWS = 50
"""How deep flows may call flows."""

_current: ContextVar[Tracer | None] = ContextVar("locktender_tracer", default=None)


def current() -> Tracer | None:
    """The trace under way in this context, if any."""
    return _current.get()


class recording:  # noqa: N801 — read as a verb: `with recording(tracer)`
    """Steps called in the block are recorded. A class: flows are traced by the ten thousand."""

    __slots__ = ("_token", "_tracer")

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __enter__(self) -> None:
        self._token = _current.set(self._tracer)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


@dataclass(slots=True)
class TraceScope:
    """A flow whose body is being called: the outermost, or one inlined in it."""

    flow: FlowDef
    prefix: str
    first: int = 0
    """Its nodes are those from here on: what it calls is recorded before it ends."""
    last: int | None = None
    """In a sequential flow: what the next step follows."""
    chain: list[int] = field(default_factory=list[int])
    """The last plain step and all since: a plain step follows them all, so that a clean-up that succeeds does
    not hide a failure before it."""
    cleanups: list[int] = field(default_factory=list[int])
    """Steps since `last` that run only after a failure."""


class Tracer:
    """Nodes in the order of calls, each with the templates of its arguments."""

    def __init__(
        self, flow: FlowDef, params: Mapping[str, Any], given: Mapping[str, bytes]
    ) -> None:
        self.nodes: list[Node] = []
        self.values: Templates = Templates(params, given)
        self.files: set[str] = {flow.file}
        self.place: TracePlace | None = flow.trace_cache.start
        """Where this trace is on a way that others took; None once it has left all that are known."""
        self._names: dict[str, int] = {}
        self._scopes = [TraceScope(flow, "")]
        self._sequential = [scope for scope in self._scopes if flow.sequential]

    def call(self, call: StepCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Handle[Any]:
        step = call.step
        step.fits(args, kwargs)
        template = self.values.template
        templates = tuple(
            [template(value, step.place_of(index)) for index, value in enumerate(args)]
        )
        for index, each in enumerate(templates):
            if type(each) is Output and each.path:
                self._check_picked(step, step.argument_name(index), each)
        return self._record(call, templates, self._named(step, kwargs), None)

    def map(
        self,
        call: StepCall,
        items: object,
        shared: Mapping[str, Any],
        window: object,
        on_error: OnError,
        take_errors: bool,
    ) -> Handle[Any]:
        step = call.step
        step.fits((Item(),), shared)
        if take_errors:
            check_takes_errors(step, cached=call.options.cache_us is not None)
        over = Over(
            items=self.values.items(items, step.place_of(0)),
            window=None if window is None else names.count(window, "window"),
            on_error=on_error,
            take_errors=take_errors,
        )
        return self._record(call, (Item(),), self._named(step, shared), over)

    def wait(
        self,
        kind: Wait,
        name: str,
        value: object,
        given: object,
        after: object,
        when: object,
        *,
        named: bool,
        event: AwaitedEvent | None = None,
        match: object = None,
        returns: Any = None,
    ) -> Handle[Any]:
        """A node without a body: `value` is its result when the time that `given` says has come.

        `event`: what it waits for until then; `returns` is the type of its payload.
        """
        template = self.values.template
        args = (template(value, f"{name}.value"), template(given, f"{name}.time"))
        if event is not None:
            args = (*args, template(match, f"{name}.match"))
        follows = self._order(after)
        for scope in self._sequential:
            follows.update(scope.chain)
        # No earlier trace has a way through a wait.
        self.place = None
        prefix = self._scopes[-1].prefix
        node = Node(
            name=self._own_name(prefix, name) if named else self._unique(prefix + name),
            step=f"locktender:{kind}",
            args=args,
            after=tuple(sorted(follows)),
            when=None if when is None else condition_of(self.values, when),
            wait=kind,
            event=event,
        )
        index = self._append(node, "success")
        kind_of = annotation_of(value) if event is None else returns
        return Handle(self.values, Output(index), node.name, kind_of)

    def inline(self, flow: FlowDef, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the body of a flow inside another: its steps join this graph."""
        flow.bind(args, kwargs)
        self._check_inner(flow)
        prefix = f"{self._unique(f'{self._scopes[-1].prefix}{flow.short}')}."
        self.files.add(flow.file)
        # What a node is called and follows depends on the flows around it: the cache is for one flow.
        self.place = None
        outside = self._sequential
        self._scopes.append(TraceScope(flow, prefix, len(self.nodes)))
        self._sequential = [scope for scope in self._scopes if scope.flow.sequential]
        try:
            result = flow.fn(*args, **kwargs)
            self.close()
        finally:
            self._scopes.pop()
            self._sequential = outside
        return result

    def close(self) -> None:
        """The innermost body has ended: adds its flow's own clean-up step, behind all its steps."""
        scope = self._scopes[-1]
        if scope.flow.on_failure is not None and scope.first < len(self.nodes):
            self._add_cleanup(scope.flow.on_failure, set(range(scope.first, len(self.nodes))))

    def _named(self, step: StepDef, kwargs: Mapping[str, Any]) -> Kwargs:
        named = {
            name: self.values.template(value, f"{step.short}.{name}")
            for name, value in kwargs.items()
        }
        for name, each in named.items():
            if type(each) is Output and each.path:
                self._check_picked(step, name, each)
        return named

    def _check_picked(self, step: StepDef, name: str, picked: Output) -> None:
        """One item of a map that collects errors may be one."""
        source = self.nodes[picked.node]
        if source.on_error == "collect" and len(picked.path) == 1:
            check_takes_error(step, name, source.name)

    def _check_inner(self, flow: FlowDef) -> None:
        if len(self._scopes) > MAX_INNER_FLOWS:
            raise InvalidFlow(
                f"flows call flows more than {MAX_INNER_FLOWS} deep at {flow.short!r}.",
                field=flow.short,
                got=len(self._scopes),
                hint="Does it call itself without end?",
            )
        outer = self._scopes[0].flow
        bounds = [(flow.max_parallel, outer.max_parallel)]
        bounds += [
            (most, outer.max_parallel_by.get(executor, outer.max_parallel))
            for executor, most in flow.max_parallel_by.items()
        ]
        for inner, around in bounds:
            # A bound that silently stops to hold is worse than an error.
            if inner is not None and (around is None or around > inner):
                raise InvalidFlow(
                    f"flow {flow.short!r} has max_parallel={inner}, which flow {outer.short!r} around"
                    " it does not keep.",
                    field="max_parallel",
                    got=around,
                    hint=f"max_parallel bounds a whole run: set it to {inner} or less on"
                    f" {outer.short!r}, or bound the inner steps with a pool.",
                )

    def _record(self, call: StepCall, args: Args, kwargs: Kwargs, over: Over | None) -> Handle[Any]:
        if self.place is not None:
            known = self.place.by_call(call, args, kwargs, over)
            # A step that was defined again since is refused, as on a new way.
            if known is not None and registry.steps.get(call.step.name) is call.step:
                return self._follow(known)
        returns = call.step.returns if over is None else list[call.step.returns]
        taken = Taken(call, args, kwargs, over) if call.is_fixed else None
        after = self._order(call.after)
        computed = call.options.cache_computed and call.options.cache_us is not None
        key = self._add_key(call, args, kwargs, over, set(after)) if computed else None
        index = self._add(call, args, kwargs, over, after, call.run_if, taken, returns, key)
        if call.on_failure is not None:
            self._add_cleanup(call.on_failure, {index} if key is None else {index, key})
        return Handle(self.values, Output(index), self.nodes[index].name, returns)

    def _add_key(
        self, call: StepCall, args: Args, kwargs: Kwargs, over: Over | None, after: set[int]
    ) -> int | None:
        """The step that computes what the result of `call` is kept under."""
        if (step := call.step.key) is None:
            return None
        # No earlier trace has a way through two nodes of one call.
        self.place = None
        each = None if over is None else replace(over, on_error="collect")
        return self._add(step.call_for(call), args, kwargs, each, after, call.run_if)

    def _follow(self, known: TracePlace) -> Handle[Any]:
        """The node is the one another run made at this place, with everything that was checked then."""
        self.place, node = known, known.node
        self._names.setdefault(node.name, 1)
        self._append(node, node.run_if)
        return Handle(self.values, known.output, node.name, known.returns)

    def _add_cleanup(self, call: StepCall, after: set[int]) -> None:
        args: Args = (FailureOf(),) if takes_failure(call.step) else ()
        self._add(call, args, {}, None, after | self._order(call.after), "failure")

    def _add(
        self,
        call: StepCall,
        args: Args,
        kwargs: Kwargs,
        over: Over | None,
        after: set[int],
        run_if: RunIf,
        taken: Taken | None = None,
        returns: Any = None,
        key: int | None = None,
    ) -> int:
        step, options = call.step, call.options
        self._check_step(step)
        sequential = self._sequential
        for scope in sequential:
            if run_if == "success":
                after.update(scope.chain)
            else:
                after.update(() if scope.last is None else (scope.last,))
                after.update(scope.cleanups)
        # What the outermost flow says is in the graph once; what an inlined one says goes to its steps.
        inner = self._scopes[-1].flow if len(self._scopes) > 1 else None
        in_order = over is not None and bool(sequential) and not self._scopes[0].flow.sequential
        node = Node(
            name=self._node_name(call),
            step=step.name,
            signature=step.signature,
            executor=options.executor,
            args=args,
            kwargs=kwargs,
            over=None if over is None else over.items,
            window=None if over is None else 1 if sequential else over.window,
            on_error="fail" if over is None else over.on_error,
            take_errors=over is not None and over.take_errors,
            in_order=in_order,
            after=tuple(sorted(after)),
            when=None if call.when is None else condition_of(self.values, call.when),
            run_if=run_if,
            pools=self._pools(call, args, kwargs),
            needs=dict(options.needs),
            affinity=options.affinity,
            retry=options.retry,
            timeout_us=options.timeout_us,
            queue_timeout_us=options.queue_timeout_us or (inner and inner.queue_timeout_us),
            dispatch_deadline_us=options.dispatch_deadline_us
            or (inner and inner.dispatch_deadline_us),
            max_abandons=options.max_abandons,
            cache=caching.rule_of(step, options, args, kwargs, key, run_if),
        )
        index = self._append(node, run_if)
        if self.place is not None:
            self.place = self.place.by_node(node, index, taken, returns)
        return index

    def _append(self, node: Node, run_if: RunIf) -> int:
        index = len(self.nodes)
        self.nodes.append(node)
        for scope in self._sequential:
            if run_if == "success":
                scope.chain = []
            scope.chain.append(index)
            if run_if == "failure":
                scope.cleanups.append(index)
            else:
                scope.last, scope.cleanups = index, []
        return index

    def _check_step(self, step: StepDef) -> None:
        if len(self.nodes) >= MAX_NODES:
            raise InvalidFlow(
                f"a flow may have at most {MAX_NODES:,} steps.",
                field="nodes",
                got=len(self.nodes) + 1,
                hint="Use .map(items) in place of a loop over calls.",
            )
        if registry.steps.get(step.name) is not step:
            raise InvalidFlow(
                f"step {step.name!r} was defined again since: a worker would run the newer one.",
                field="name",
                got=step.name,
                hint="Give one of them another name: @step(name=...).",
            )
        step.prepare()

    def _order(self, after: object) -> set[int]:
        """Nodes named by `after=`: one handle or several, also inside lists and dicts."""
        if after is None:
            return set()
        if isinstance(after, Handle):
            return {output_of(self.values, cast("Handle[Any]", after)).node}
        if isinstance(after, dict):
            after = list(cast("dict[object, object]", after).values())
        if isinstance(after, list | tuple | set | frozenset):
            several = cast("list[object]", after)
            return {index for each in several for index in self._order(each)}
        raise InvalidFlow(
            "after= takes handles.",
            field="after",
            got=after,
            hint="Give it what calling a step returned: with_options(after=[handle]).",
        )

    def _pools(self, call: StepCall, args: Args, kwargs: Kwargs) -> tuple[PoolNeed, ...]:
        needs: list[PoolNeed] = []
        for pool in call.options.pools:
            key = tuple(
                self._key_part(call.step, part.name, args, kwargs)
                if isinstance(part, Placeholder)
                else part
                for part in pool.key
            )
            needs.append(PoolNeed(pool.name, pool.slots, key))
        return tuple(needs)

    def _key_part(self, step: StepDef, name: str, args: Args, kwargs: Kwargs) -> AnyTemplate:
        """`{name}` of a pool's key: the step's argument of that name if it has one, else the run's tag."""
        parameter = step.parameters.parameters.get(name)
        if parameter is None:
            return Tag(names.tag_key(name, "pools"))
        bound = step.parameters.bind(*args, **kwargs).arguments
        found: object = bound.get(name)
        if found is None and parameter.default is not parameter.empty:
            found = self.values.template(parameter.default, f"{step.short}.{name}")
        if found is None or isinstance(found, FailureOf | ListOf | DictOf | tuple | dict):
            raise InvalidFlow(
                f"argument {name!r} of step {step.short!r} cannot be the key of a pool.",
                field="pools",
                got=name,
                hint="A key is one text or number.",
            )
        return cast("AnyTemplate", found)

    def _node_name(self, call: StepCall) -> str:
        prefix = self._scopes[-1].prefix
        if call.name is None:
            return self._unique(prefix + call.step.short)
        return self._own_name(prefix, call.name)

    def _own_name(self, prefix: str, given: str) -> str:
        name = prefix + given
        if name in self._names:
            raise InvalidFlow(
                f"two steps of the flow are named {name!r}.",
                field="name",
                got=given,
                hint="Give each its own name, or leave name= out to have them numbered.",
            )
        self._names[name] = 1
        return name

    def _unique(self, wanted: str) -> str:
        """`wanted`, then `wanted-2`, `wanted-3`; remembers where it was, so that long loops stay linear."""
        number = self._names.get(wanted, 0)
        name = wanted
        while name in self._names:
            number += 1
            name = f"{wanted}-{number}"
        self._names[wanted] = max(number, 1)
        self._names.setdefault(name, 1)
        return name
