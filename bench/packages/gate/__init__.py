"""The gate: is every node of a job good enough?"""
