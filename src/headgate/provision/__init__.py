"""Workers that are started when work overflows, and end themselves when it has gone.

protocol    what a provisioner is
policy      when to ask one, for how many, and when to give up: pure
dealing     how many workers it takes for what waits: pure
local       worker processes on this machine
worker_logs what those print, and the lock by which everybody knows that they live

`stages/overflow.py` is where a leader runs them.
"""
