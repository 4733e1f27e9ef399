"""Facts of the training benchmark, and published tables, turned into conclusions."""
