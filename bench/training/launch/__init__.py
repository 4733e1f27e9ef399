"""Start ranks that train, and watch them. Runs in parent processes; no torch."""
