"""HTTP: the state of a server or worker, and the API of a server.

api          `/api/v1`: the verbs of the client
app          the routes
state        `/health`; `/api/v1/demand`: the leader's own figure, or the same rules over the rows
web          the socket and the HTTP server on the engine's loop

The server shares the engine's loop, so it never waits for a client: each answer
is made once, slow connections are cut, and their number is bounded.
"""
