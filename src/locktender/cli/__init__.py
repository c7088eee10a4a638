"""The command line: noun verb, for people and (`--json`) for scripts.

main            the program: all commands, and the exit code of an error
context         what every command has: url, output, debugging; how a command is registered
errors          errors as text or JSON, and their exit codes
arguments       --args, --arg, --tag, --pool, numbers … as values
load_flow       FILE.py:flow → a flow; import errors of the user's file
output          what is printed, without rich where nothing has to be cut or drawn
tables          tables, ages, short ids
reader          a store read past the client's methods
run, run_view   `run`, `submit`, and the view of one run; run_picture draws it
runs, queue, pools, limits, workers, why, audit, db, config    the nouns
dev, reload     `dev`: an engine for one file that is reloaded when it changes
demo            `demo`; demo_flow and demo_proof are its parts
server, worker  `server`, `worker`; shutdown and more_workers are what they share
interrupts      Ctrl-C and SIGTERM, counted

Heavy modules are imported inside the command that needs them.
"""
