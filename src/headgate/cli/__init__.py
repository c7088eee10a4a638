"""The command line: noun verb, for people and (`--json`) for scripts.

main          the program: all commands, and what an error does to the exit code
shell         what every command has: url, output, debugging; how a command is registered
failures      errors as text or JSON, and their exit codes
tables        tables, ages and short ids
importing     a user's file as a module, or the part of its traceback that is theirs
targets       FILE.py:flow → a flow
arguments     --args, --arg, --tag, --pool … as values
watching      one run read for display: per step done, running, waiting and for what
display       that view as a live picture or as plain lines
run           `run`, `submit`
runs, queue, pools, limits, workers, looking, auditing, settings    the nouns
dev           `dev`: an engine that reloads its file
demo          `demo`; its flow, its records and its second worker have files of their own
"""
