"""The client: what users call, sync and async, embedded or beside a live engine.

The core is async and written once; the sync client is a bridge to a loop in a
thread of its own, method by method.

open           embedded(), connect() and their async twins
client         the sync client; client_async the async one; core what all methods share
submit         a call of a flow → a run to store, and what its refusal means
run            one run; run_details its tasks and events, run_logs its lines; retry_runs queues it again
results        an ended run → its value, or the error that says what failed
waiting        until a run has ended, without polling where this process leads
runs, limits   the namespaces for sync code; *_async the same for async code
views          values that reading methods return
slots          `slots()`; slot_worker is the worker that holds them
runner         what `flow.run(...)` calls
"""
