"""Workers that are started when work overflows, and end themselves when it has gone.

protocol    what a provisioner is
policy      when to ask one, for how many, and when to give up: pure
local       worker processes on this machine

`stages/overflow.py` is where a leader runs them.
"""
