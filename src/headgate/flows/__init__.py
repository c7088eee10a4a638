"""What users write: steps, flows and handles, traced into a graph.

A flow's body runs once per submission, with its real parameters and no step
running: each call of a step records a node and returns a *handle* that stands
for its future result. `trace` turns the record into plain data (`base.graph`).

signals    what a body may raise: Retry, Fatal
function   a user's function: name, signature hash, typed decoding of calls
options    what `@step` and `@flow` accept, checked
pools      pools as written, with keys such as "api[{tenant}]"
handles    handles and the conditions made from them
tracer     the recorder behind a body
steps      `@step`
flows      `@flow`
trace      a flow and its arguments → graph, parameters, constants
registry   every step and flow by name
running    where the client hooks in `flow.run(...)`
"""
