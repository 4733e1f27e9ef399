"""Prove that the suite is right: known links, planted faults and changes, the suite's own cost, its intervals."""
