"""Load torch and all else that a rank needs, once, in the fork server, which imports this module.

The loaded objects are frozen (`gc.freeze`): a garbage collection in a rank would otherwise write to, and so copy, every
page of torch's objects that the rank shares with the server (0.1 to 0.3 s per collection, measured).
"""

import gc

gc.disable()  # the loaded objects contain no garbage, and collecting takes a tenth of the loading time

import collbench.rank.main  # noqa: E402 - torch, numpy and all that a rank needs
import collbench.rank.process  # noqa: E402
from collbench.model.records import Job  # noqa: E402
from collbench.store import encoding  # noqa: E402

encoding.prepare_to_decode(Job)
collbench.rank.process.looked()  # loads the packages' `look` functions

gc.collect()
gc.freeze()
gc.enable()
