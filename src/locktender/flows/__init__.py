"""What users write: steps, flows and handles, traced into a graph.

A flow's body runs once per submission, with its real parameters and no step
running: each call of a step records a node and returns a *handle* that stands
for its future result. `trace` turns the record into plain data (`base.graph`).

signals      what a body may raise: Retry, Fatal
function     a user's function: name, signature hash, typed decoding of calls
pools        pools as written, with keys such as "api[{tenant}]"
options      what `@step`, `with_options` and `@flow` accept, checked
definitions  steps and flows as the engine sees them
registry     every step and flow by name
parts        fields and elements of a result, by its annotation
handles      handles and the conditions made from them
templates    values as parameters, results or hoisted constants
tracer       the recorder behind a body
ways         ways that traces of one flow have taken
known_graphs graphs that were found sound, within a bound of bytes
steps        `@step`
flows        `@flow`
trace        a flow and its arguments → graph, parameters, constants
running      where the client hooks in `flow.run(...)`
"""
