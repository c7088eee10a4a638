"""The client of a server: the verbs of `locktender.client` over `/api/v1`.

Each class here is the one of the same verbs over a store, with the verbs written again as requests. Sync code
gets them through the same `Client`, `Run` and namespaces: those only call across the bridge.
"""
