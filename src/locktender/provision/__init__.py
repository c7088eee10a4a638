"""Workers that start when tasks lack only a worker, and end themselves when idle.

protocol      the methods of a provisioner
calls         calls to a provisioner: time limit, checked answers
packing       how many workers the waiting tasks need: pure
policy        when to ask for workers, and which stored names count: pure
controller    what a leader runs: list, count, plan, store, ask
local         worker processes on this machine
worker_logs   the log and the lock of each local worker
"""
