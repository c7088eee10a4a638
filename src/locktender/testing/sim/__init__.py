"""The simulator: the real kernel under a virtual clock, a model of the store, workers and leaders that die."""
