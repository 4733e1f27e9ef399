"""CollBench: collective-communication benchmarks whose numbers say how far they can be trusted.

Start reading at `collbench/model/records.py`, which holds the data in the order in which it flows.
"""

__all__ = ["__version__"]
__version__ = "1.0.0rc1"
