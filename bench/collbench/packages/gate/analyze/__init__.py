"""Decide whether the nodes of a job, or the cases of a run, are good enough. Loads no torch."""
