"""Tables of what exists: operations, dtypes, backends, metrics, groups of ranks, variables."""
