"""Conclusions from facts: everything here takes what `store.read` gives and measures nothing."""
