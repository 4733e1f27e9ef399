"""The data that flows through CollBench, and its errors, units and spelling. Imports nothing else of `bench`."""
