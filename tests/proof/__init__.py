"""The proof that the suite is right: known links, planted faults, planted changes, its own cost, its intervals."""
