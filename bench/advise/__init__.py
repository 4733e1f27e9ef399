"""Advise on buckets: find the plan that a link and a backward call for, say what to type, and verify it."""
