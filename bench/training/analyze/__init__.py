"""Turn facts of the training benchmark, and published tables, into conclusions."""
