"""The first module that the fork server loads: from then on the server ends when the process that started it does.

It does so by importing this module. Should that process have ended already, the server notices it by its pipe, before
it forks a rank. The ranks take the server's number from here, to notice that it ended while they were forked.
"""

import os

from bench.machine import processes

PID = os.getpid()
processes.end_with_parent()
