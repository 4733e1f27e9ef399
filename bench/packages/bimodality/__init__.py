"""Cases whose launches fall into two groups, and what goes with them. Loads no torch."""
