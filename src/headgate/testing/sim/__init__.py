"""The simulator: the real kernel under a virtual clock, with a model of the store, workers that die and leaders that change."""
