"""What users write: steps, flows and handles, traced into a graph.

A flow's body runs once per submission, with its real parameters and no step
running: each call of a step records a node and returns a *handle* that stands
for its future result. `trace` turns the record into plain data (`base.graph`).

steps, flows   `@step`, `@flow`
options        the options they accept, checked
signals        exceptions a body may raise: Retry, Fatal
function       a user's function: name, signature hash, typed decoding of calls
pools          pools as written, with keys such as "api[{tenant}]"
definitions    steps and flows as the engine sees them
registry       every step and flow by name
handles        handles, parts of results, conditions
templates      values as parameters, results or hoisted constants
tracer         the recorder behind a body
trace_cache    nodes and graphs of earlier traces of a flow, reused
trace          a flow and its arguments → graph, parameters, constants
running        where the client hooks in `flow.run(...)`
"""
