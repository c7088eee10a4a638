"""Workers that start when tasks lack only a worker, and end themselves when idle.

protocol      the methods of a provisioner; calls to it: time limit, checked answers
policy        when to ask for workers, how many, and which stored names count: pure
controller    what a leader runs: list, count, plan, store, ask
local         worker processes on this machine
options       `[provisioner]` of the settings; what a worker elsewhere is given
command       workers that an operator's commands start
subprocesses  one such command, bounded
kubernetes    workers as Jobs; the copy of them that a leader keeps
kube_jobs     the manifest of a Job, and what its status says: pure
kube_api      the requests to the API server
"""
