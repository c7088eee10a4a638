"""HTTP: the state of a server or worker, read only.

app          the routes
health       `/health`
demand       `/api/v1/demand`: the leader's own figure, or the same rules over the rows
answers      JSON answers, and errors as `{code, message, field, got, hint}`
fresh        one answer for all requests within a second
web          the socket and the HTTP server on the engine's loop

The server shares the engine's loop, so it never waits for a client: each answer
is made once, slow connections are cut, and their number is bounded.
"""
