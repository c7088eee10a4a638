"""For tests, ours and users': simulator, conformance suite, fixtures. Nothing but tests imports it."""
