"""Define tables of operations, dtypes, backends, metrics, groups of ranks and variables."""
