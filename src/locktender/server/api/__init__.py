"""The HTTP API `/api/v1`: verbs of the async client, by JSON. docs/design/http.md describes it.

table         every route: method, path, scope, body, answer
routing       what each request passes before its handler
principal     who asks, and what they may see
reading       bodies and query strings
answers       errors as answers
"""
