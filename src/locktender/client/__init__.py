"""The client: what users call, sync and async, embedded or beside a live engine.

The core is async and written once; the sync client is a bridge to a loop in a
thread of its own, method by method.

opening        a url → a store; which urls there are
core           what every verb shares: store, settings, engine, who is asking, is it still open
submission     a call of a flow → a run to hand in, and what its refusal means
waiting        until a run has ended, without polling where this process leads
results        an ended run → its value, or the error that says what failed
views          what the reading verbs show
*_async        the async client's parts; the module of the same name without it is the bridge
holders        `slots()`: a worker that holds pool slots for code outside of any flow
embedding      embedded(), connect() and their async twins
runner         what `flow.run(...)` calls
"""
