"""What each error code means and what to do: `locktender explain CODE`, and the page of the site.

`ERRORS` are the codes of errors that a call, a command or the HTTP API answers with; `FAILURES` the
types of failures that end a task or a run without an exception of the user's own.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class CodeText(NamedTuple):
    cause: str
    fix: str


def _texts(*rows: tuple[str, str, str]) -> dict[str, CodeText]:
    return {code: CodeText(cause, fix) for code, cause, fix in rows}


ERRORS: Final[dict[str, CodeText]] = _texts(
    (
        "access_refused",
        "A server refused the request: no token or an unknown one (401), or one that may not do this (403).",
        "Give a token: `connect(url, token=…)` or `LOCKTENDER_TOKEN`; `locktender tokens list` shows scopes.",
    ),
    (
        "admission_rejected",
        "A ceiling is reached (`max_active`, `max_waiting`, a tag's), or a mailbox is full. Nothing was stored.",
        "Submit again after `retry_after` seconds (`Retry-After` over HTTP), or raise the limit.",
    ),
    (
        "argument_mismatch",
        "A stored argument does not fit the class in the step's annotation any more.",
        "Give the new field a default, or restore the old class; then retry the run.",
    ),
    (
        "client_closed",
        "The client was used after `close()` or after its `with` block.",
        "Open a new client. Runs stay in the store: `client.runs.get(id)` finds them.",
    ),
    (
        "command_failed",
        "A command that starts or ends workers failed, timed out or printed what cannot be read.",
        "The message has its output. Run the command by hand; a cool-down follows, and no task fails.",
    ),
    (
        "conflict",
        "The state of the run does not allow the request; the field `state` has it.",
        "Read the run again and decide anew: an ended run cannot be cancelled, a running run cannot be retried.",
    ),
    (
        "data_refused",
        "The store refused a value: it is too large, no valid text, or against a constraint.",
        "Change the value. The same write never succeeds.",
    ),
    (
        "demo_failed",
        "A process of `locktender demo` did not do what the demo waits for.",
        "Run `locktender demo --debug`, and report the output.",
    ),
    (
        "duplicate_key",
        "An active run has this key, with other arguments or with `on_duplicate='reject'`.",
        "Wait for that run, use another key, or choose `on_duplicate='replace'`.",
    ),
    (
        "error",
        "The base class of all errors; no error has this code alone.",
        "Read the message, and report it: each error should have a code of its own.",
    ),
    (
        "events_pruned",
        "Events behind a cursor were removed by retention before they were read.",
        "Go on with what is left (`--skip-pruned`), and read more often or raise `retention`.",
    ),
    (
        "forbidden",
        "The request may not do this: a foreign host or origin, or an address that needs tokens.",
        "Call the API from the same machine, or see who may ask on the page of the HTTP API.",
    ),
    (
        "history_broken",
        "Promises were broken in the part of the history that was to be pruned.",
        "Look at `locktender audit`. `locktender db prune --force` removes the part after you have seen it.",
    ),
    (
        "history_replaced",
        "Another database server answers, or an older copy was restored.",
        "Processes read everything again by themselves. Restart workers after a fail-over.",
    ),
    (
        "internal",
        "A fault of Locktender or of the system: a full disk, a directory that is gone, or a bug.",
        "Repeat the command with `--debug` and report the traceback.",
    ),
    (
        "invalid_flow",
        "The flow's body used a result that is not there yet (`for`, `if`, a text, `+`), or an option is wrong.",
        "Hand the result to a step: `step.map(result)`, `with_options(when=…)`. `field` names the step or option.",
    ),
    (
        "invalid_input",
        "An argument can never be right. Nothing was stored.",
        "Change the value; `field`, `got` and `hint` say which and how.",
    ),
    (
        "invalid_result",
        "A step returned a value that its return annotation rules out.",
        "Change the annotation or the value. The task is not retried.",
    ),
    (
        "invalid_settings",
        "A setting is unknown, has a wrong value, or contradicts another one.",
        "`locktender config show` lists every setting, its value and where the value comes from.",
    ),
    (
        "kubernetes",
        "The API of Kubernetes refused a request of the provisioner.",
        "The message has its status and answer. Check the rights of the service account.",
    ),
    (
        "kubernetes_unreachable",
        "The API of Kubernetes does not answer.",
        "The provisioner tries again after a cool-down; no task fails. Check address and network.",
    ),
    (
        "lease_lost",
        "Slots that `slots()` held are free again: the process could not renew its lease in time.",
        "Stop the work that the slots protect, and take the slots again.",
    ),
    (
        "limit_changed",
        "The limit is not what `expected=` (`--if`, `If-Match`) said: another operator changed it.",
        "Read the limit again (`locktender limits history` says who changed it) and repeat the change.",
    ),
    (
        "malformed",
        "The body of the request is not JSON, or a header cannot be read.",
        "The message has line and column. Send `content-type: application/json`.",
    ),
    (
        "method_not_allowed",
        "The path exists, but not with this method.",
        "`/api/docs` lists the methods of each path.",
    ),
    (
        "not_found",
        "No run, task, pool, flow, schedule or worker has this name or id in this store.",
        "Check `--url` (`locktender config show`), then list them: `locktender runs list`.",
    ),
    (
        "not_leader",
        "A process wrote as leader after its term had ended. The write changed nothing.",
        "Nothing: the new leader goes on. If it happens often, see the alert LocktenderLeaderFlapping.",
    ),
    (
        "out_of_order",
        "A commit reached the store before the commit it follows.",
        "Nothing: the leader repeats both in their order. Report it if it happens again.",
    ),
    (
        "overloaded",
        "More requests at once than this server answers.",
        "Repeat after `Retry-After`, or start another server.",
    ),
    (
        "ray_failed",
        "A call to the Ray cluster failed or timed out.",
        "The message has Ray's answer. Check `address` and the cluster; a cool-down follows, no task fails.",
    ),
    (
        "role_refused",
        "The database role of this process may not do that. Nothing was stored.",
        "`locktender db grant-worker` and `grant-submit` give a role what it needs, and nothing else.",
    ),
    (
        "run_cancelled",
        "`result()` of a run that somebody cancelled, or that a later run of its key replaced.",
        "`locktender events RUN` says who and why. `locktender runs retry RUN` runs it again.",
    ),
    (
        "run_failed",
        "`result()` of a run of which a step failed for good.",
        "`.step`, `.error_type` and `.traceback` say where. Mend it, then `locktender runs retry RUN`.",
    ),
    (
        "run_timed_out",
        "`result()` of a run that passed its `deadline`.",
        "`locktender blame RUN` says where the time went. Raise the deadline or the limit it waited at.",
    ),
    (
        "schema_too_new",
        "A newer release of Locktender wrote the store.",
        "Upgrade this process. Older code never writes a newer schema.",
    ),
    (
        "secret_missing",
        "A worker has no variable for `secret('env:NAME')`.",
        "Set the variable in the environment of every worker that runs this step.",
    ),
    (
        "store",
        "The store cannot be opened or written: permissions, a wrong url, a damaged file, a full disk.",
        "The message names the cause. `locktender db status` checks the store.",
    ),
    (
        "store_busy",
        "Another process holds the write lock of the SQLite file for too long.",
        "End the program that holds it (a database browser, a backup), or use PostgreSQL.",
    ),
    (
        "store_unreachable",
        "Nothing answers at the address of the database.",
        "Start the database or mend the network. Servers and workers that run wait for it.",
    ),
    (
        "too_large",
        "The body of the request has more than 2 MB.",
        "Store large values elsewhere and submit a path or a url.",
    ),
    (
        "unauthorized",
        "The request has no token, or one that is unknown, expired or revoked.",
        "Send `authorization: Bearer TOKEN`; `locktender tokens create` makes one.",
    ),
    (
        "unavailable",
        "The store did not answer in time.",
        "Repeat after `Retry-After`; `/health` names what is in the way.",
    ),
    (
        "unreadable",
        "A stored row has a value that no release has written.",
        "The run is *held*. Repair the row and `locktender runs retry RUN`, or cancel the run.",
    ),
    (
        "unserialisable",
        "An argument has no JSON form.",
        "Use plain values, dataclasses, `msgspec` structs or pydantic models, or pass a path.",
    ),
    (
        "unsupported_media_type",
        "The body is not plain JSON: another content type, or compressed.",
        "Send `content-type: application/json` without `content-encoding`.",
    ),
    (
        "usage",
        "The command line has an unknown word or option, or lacks one.",
        "`--help` behind the command shows its options and an example.",
    ),
    (
        "user_code",
        "Your file cannot be imported, or has no such flow.",
        "The traceback has your line. Mend it and repeat the command.",
    ),
    (
        "wait_over",
        "The wait was answered already, or timed out or was cancelled with its run.",
        "Nothing: the first answer counts. `run.waits()` lists the waits that are open.",
    ),
    (
        "wait_timeout",
        "The timeout of the caller passed, for example in `result('30s')`. The run goes on.",
        "Wait longer, or ask `run.why()` what the run waits for.",
    ),
    (
        "wrong_content",
        "A value that is stored apart is not the one that was written: its hash differs.",
        "Restore the file or object from a backup. Each other run goes on.",
    ),
)
FAILURES: Final[dict[str, CodeText]] = _texts(
    (
        "again",
        "A retry of the run executes this task again, so its earlier end does not count.",
        "Nothing.",
    ),
    (
        "cancelled",
        "The run or the task was cancelled.",
        "`locktender events RUN` says by whom.",
    ),
    (
        "capacity",
        "For `dispatch_deadline` (4 h) every limit had room and no worker could run the task.",
        "Start a worker that has the step, its version and its labels; `locktender why RUN` says what is missing.",
    ),
    ("deadline", "The run passed its `deadline`.", "As for `run_timed_out`."),
    (
        "drained",
        "The worker was asked to end before the task had ended. The task is handed back.",
        "Nothing: it runs on another worker, and no attempt is charged.",
    ),
    (
        "dropped",
        "`keep='newest'` or `debounce` let a later run of the same key take its place.",
        "Nothing. Raise `max_queued` if more runs of a key should wait.",
    ),
    (
        "event_timeout",
        "`wait_event` got no event within its `timeout` and has no `default`.",
        "Give it a `default=`, a longer timeout, or send the event and retry the run.",
    ),
    (
        "failed",
        "A task of the run failed and left no error of its own.",
        "`locktender runs show RUN --tasks` lists the tasks.",
    ),
    (
        "flow_input",
        "The arguments of a step cannot be made from the results before it.",
        "The message names the step and the part, for example a key that a dict does not have.",
    ),
    (
        "held",
        "Something of the run cannot be read, decided or written.",
        "`locktender runs list --state held` says why. Repair it and retry the run, or cancel it.",
    ),
    (
        "invalid_arguments",
        "The arguments do not fit the parameters of the step's function.",
        "The signature changed after the run was submitted: restore it, or submit again.",
    ),
    (
        "queue_timeout",
        "The task waited longer at its limits than its `queue_timeout`.",
        "`locktender blame RUN` names the limit. Raise the limit or the timeout.",
    ),
    (
        "result",
        "The result of the flow cannot be made from the results of its steps.",
        "The message names the part that is missing.",
    ),
    (
        "result_too_large",
        "The result of a step is larger than `max_value` (2 MB).",
        "Write it to a file or bucket and return the path, or raise `max_value`.",
    ),
    (
        "secret_in_result",
        "The result of a step holds the value of a secret.",
        "Return something else: results are stored in plain text.",
    ),
    (
        "step_not_importable",
        "The worker cannot import the module of the step.",
        "Install its dependencies on the worker; the message is the error of the import.",
    ),
    (
        "timeout",
        "One attempt ran longer than the `timeout` of its step.",
        "It is retried like a failure. Raise `timeout`, or `retries`.",
    ),
    (
        "unknown",
        "An older row has a failure without a reason.",
        "`locktender events RUN` shows what led to it.",
    ),
    (
        "unknown_step",
        "The child process does not know the step.",
        "Define the step at the top of a module, not inside a function or under `if __name__`.",
    ),
    (
        "unserialisable_result",
        "The result of a step has no JSON form.",
        "Return plain values, dataclasses, structs or models, or a path.",
    ),
    (
        "worker_crashed",
        "The child process of the step ended: a signal, a crash in C, or out of memory.",
        "The message has the signal. It is retried like a failure.",
    ),
    (
        "worker_lost",
        "As many workers as `max_abandons` (3) died while they ran the task.",
        "The body may kill its worker (memory?): use `executor='process'`, then retry the run.",
    ),
)
CODES: Final[dict[str, CodeText]] = {**FAILURES, **ERRORS}
