"""Runs of the gradient benchmark as text, tables, pictures and traces. Computes nothing but layout."""
