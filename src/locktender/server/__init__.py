"""HTTP: what a server or a worker tells whoever asks. Reads only; decides nothing.

app          the routes, and what they answer
health       `/health`
demand       `/api/v1/demand`: the leader's own figure, or the same rules over the rows
answers      JSON answers, and errors as `{code, message, field, got, hint}`
fresh        one answer for all who ask within a second
listening    the socket, bound before anything else is started
web          the HTTP server on the engine's loop

The server shares the loop of the engine. So nothing here waits for a client: an
answer is made once and written to whoever takes it; a connection that does not
finish in time is cut, and there is a most of them.
"""
