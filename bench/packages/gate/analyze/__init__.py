"""Conclusions: are the nodes of a job, or the cases of a run, good enough? Loads no torch."""
