"""Words every other layer shares: models, states, errors, clocks, limits, the graph. Imports nothing of ours."""
