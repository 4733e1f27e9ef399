"""What the fork server loads once for all ranks. Importing this module is its whole purpose.

Freezing: a garbage collection in a rank would otherwise walk, and so copy, every page of torch's objects
that it shares with the server (0.1 to 0.3 s a collection, measured).
"""

import gc

import bench.measure.worker  # noqa: F401 - torch, numpy and all that a rank needs

gc.collect()
gc.freeze()
