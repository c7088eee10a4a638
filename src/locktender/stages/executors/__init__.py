"""How a worker runs bodies: on its loop, in threads, in child processes. One protocol for all three."""
