"""Other people's systems, each run in an environment of its own, so that its requirements never meet ours."""
