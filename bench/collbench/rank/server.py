"""Let the fork server end when the process that started it ends, and load torch, or say why it cannot be loaded.

The server imports this module before all others. If that process has ended already, the server notices this from its
pipe, before it forks a rank. The ranks take the server's process id from here, to notice that the server ended while
they were forked.
"""

import os
import sys

from collbench.machine import processes

PID = os.getpid()
processes.end_with_parent()
try:
    import torch  # noqa: F401
except Exception as error:  # multiprocessing hides an ImportError, and all else would be the end of a long traceback
    sys.stderr.write(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}\n")
    sys.stderr.flush()
    os._exit(1)
