"""The data that flows through CollBench, and its errors and units. Imports nothing else of `collbench`."""
