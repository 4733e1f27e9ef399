"""Let the fork server end when the process that started it ends; the server imports this module before all others.

If that process has ended already, the server notices this from its pipe, before it forks a rank. The ranks take the
server's process id from here, to notice that the server ended while they were forked.
"""

import os

from bench.machine import processes

PID = os.getpid()
processes.end_with_parent()
