"""CollBench: collective-communication benchmarks whose numbers say how far they can be trusted.

Start reading at `bench/records.py`, which holds the data in the order in which it flows.
"""

__version__ = "0.1.0"
