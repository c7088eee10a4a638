"""Workers that are started when work overflows, and end themselves when it has gone.

protocol    what a provisioner is
answers     what one answered, checked
arms_length one that can neither keep, cancel nor end whoever asks it
sight       what a leader sees, knows and plans
standing    how that is said
policy      when to ask one, for how many, and when to give up: pure
dealing     how many workers it takes for what waits: pure
local       worker processes on this machine
worker_logs what those print, and the lock by which everybody knows that they live

`provision/controller.py` is where a leader runs them.
"""
