"""The command line: noun verb, for people and (`--json`) for scripts.

main            the program: all commands, and what an error does to the exit code
shell           what every command has: url, output, debugging; how a command is registered
failures        errors as text or JSON, and their exit codes
numbers         numbers as arguments, negative ones too
tables          tables, ages and short ids
reading         a store read past the client's verbs
importing       a user's file as a module, or the part of its traceback that is theirs
targets         FILE.py:flow → a flow
arguments       --args, --arg, --tag, --pool … as values
run             `run`, `submit`
following       one run, from its submission to its end
watching        that run read for display: per step done, running, waiting and for what
display         the view of it, as a live picture or as plain lines
interrupts      Ctrl-C and SIGTERM, counted
runs, queue, pools, limits, workers, looking, auditing, db, settings    the nouns
holders         who holds slots of a pool
dev             `dev`; `dev_loop`, `dev_screen` and `reloading` are its parts
demo            `demo`; `demo_story`, `demo_flow`, `demo_records` and `demo_proof` are its parts
server, worker  `server`, `worker`; `serving` is what they share

Only main, shell, failures, numbers and the nouns are loaded by every command;
what is heavy is imported inside the command that needs it.
"""
