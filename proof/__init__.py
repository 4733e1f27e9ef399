"""The proof that the suite is right: known links, planted faults and changes, its own cost, its intervals."""
